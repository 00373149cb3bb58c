import java.io.DataInputStream;
import java.io.EOFException;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.CloseableIterator;

/**
 * Reads record sets as Kafka's own consumer does with check.crcs (CompletedFetch), from offset 0 on.
 *
 * In: sets, each after its size. Out: a line for each record of a set (offset, timestamp, key, value, headers), and
 * then "end", or "fault" with the error's class and text.
 */
public class RecordsReader {
    public static void main(String[] arguments) throws Exception {
        DataInputStream in = new DataInputStream(System.in);
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        for (;;) {
            byte[] set;
            try {
                set = new byte[in.readInt()];
            } catch (EOFException end) {
                break;
            }
            in.readFully(set);
            StringBuilder lines = new StringBuilder();
            try {
                read(set, lines);
                lines.append("end\n");
            } catch (Throwable error) {
                lines.append("fault " + error.getClass().getSimpleName() + " " + line(error.getMessage()) + "\n");
            }
            out.print(lines);
        }
        out.flush();
    }

    private static void read(byte[] set, StringBuilder lines) {
        BufferSupplier buffers = BufferSupplier.create();
        long next = 0;
        for (RecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(set)).batches()) {
            if (batch.magic() >= RecordBatch.MAGIC_VALUE_V2) {
                batch.ensureValid();
            }
            try (CloseableIterator<Record> records = batch.streamingIterator(buffers)) {
                while (records.hasNext()) {
                    Record record = records.next();
                    record.ensureValid();
                    if (!batch.isControlBatch() && record.offset() >= next) {
                        lines.append(text(record));
                        next = record.offset() + 1;
                    }
                }
            }
            next = batch.nextOffset();
        }
    }

    private static String text(Record record) {
        StringBuilder headers = new StringBuilder();
        for (Header header : record.headers()) {
            ByteBuffer value = header.value() == null ? null : ByteBuffer.wrap(header.value());
            headers.append(" " + header.key() + "=" + hex(value));
        }
        return record.offset() + " " + record.timestamp() + " " + hex(record.key()) + " " + hex(record.value())
            + headers + "\n";
    }

    private static String hex(ByteBuffer buffer) {
        if (buffer == null) {
            return "null";
        }
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return "x" + HexFormat.of().formatHex(bytes);
    }

    private static String line(String text) {
        return text == null ? "" : text.replace('\n', ' ');
    }
}
