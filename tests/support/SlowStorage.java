import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;

/**
 * Tiered storage in a directory. The first read of a segment takes `delay.ms`, also if the broker does not wait for it;
 * from then on it is in a cache, as real plugins have one. `forget` in the directory empties the cache when it appears.
 */
public class SlowStorage implements RemoteStorageManager {
    private final Map<String, Long> cached = new ConcurrentHashMap<>();
    private Path folder;
    private long delay;

    @Override
    public void configure(Map<String, ?> settings) {
        folder = Path.of(settings.get("folder").toString());
        delay = Long.parseLong(settings.get("delay.ms").toString());
    }

    @Override
    public Optional<CustomMetadata> copyLogSegmentData(RemoteLogSegmentMetadata segment, LogSegmentData data)
            throws RemoteStorageException {
        try {
            Files.createDirectories(folder);
            Files.copy(data.logSegment(), file(segment, "LOG"));
            Files.copy(data.offsetIndex(), file(segment, "OFFSET"));
            Files.copy(data.timeIndex(), file(segment, "TIMESTAMP"));
            Files.copy(data.producerSnapshotIndex(), file(segment, "PRODUCER_SNAPSHOT"));
            if (data.transactionIndex().isPresent()) {
                Files.copy(data.transactionIndex().get(), file(segment, "TRANSACTION"));
            }
            ByteBuffer epochs = data.leaderEpochIndex();
            byte[] bytes = new byte[epochs.remaining()];
            epochs.get(bytes);
            Files.write(file(segment, "LEADER_EPOCH"), bytes);
            return Optional.empty();
        } catch (IOException error) {
            throw new RemoteStorageException(error);
        }
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int first) throws RemoteStorageException {
        return fetchLogSegment(segment, first, Integer.MAX_VALUE);
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int first, int last)
            throws RemoteStorageException {
        try {
            Path file = file(segment, "LOG");
            if (Files.deleteIfExists(folder.resolve("forget"))) {
                cached.clear();
            }
            long ready = cached.computeIfAbsent(file.toString(), name -> System.currentTimeMillis() + delay);
            Thread.sleep(Math.max(ready - System.currentTimeMillis(), 0));
            byte[] all = Files.readAllBytes(file);
            int until = (int) Math.min(all.length, last + 1L);
            return new ByteArrayInputStream(all, first, Math.max(until - first, 0));
        } catch (IOException | InterruptedException error) {
            throw new RemoteStorageException(error);
        }
    }

    @Override
    public InputStream fetchIndex(RemoteLogSegmentMetadata segment, IndexType index) throws RemoteStorageException {
        Path file = file(segment, index.name());
        if (!Files.exists(file)) {
            throw new RemoteResourceNotFoundException(file + " is not there");
        }
        try {
            return Channels.newInputStream(FileChannel.open(file));
        } catch (IOException error) {
            throw new RemoteStorageException(error);
        }
    }

    @Override
    public void deleteLogSegmentData(RemoteLogSegmentMetadata segment) {}

    @Override
    public void close() {}

    private Path file(RemoteLogSegmentMetadata segment, String kind) {
        return folder.resolve(segment.remoteLogSegmentId().id() + "." + kind);
    }
}
