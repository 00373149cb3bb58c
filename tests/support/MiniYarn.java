// A YARN of one node: its configuration is in the directory of the argument once it serves. Ends with a signal.
import java.io.File;
import java.io.FileOutputStream;
import java.io.OutputStream;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

public class MiniYarn {
    public static void main(String[] arguments) throws Exception {
        YarnConfiguration conf = new YarnConfiguration();
        conf.set("fs.defaultFS", "file:///");
        conf.set("yarn.scheduler.capacity.root.queues", "default");
        conf.set("yarn.scheduler.capacity.root.default.capacity", "100");
        conf.set("yarn.scheduler.capacity.maximum-am-resource-percent", "1");
        conf.setInt("yarn.scheduler.minimum-allocation-mb", 128);
        conf.setFloat("yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", 100f);
        MiniYARNCluster yarn = new MiniYARNCluster("yarn", 1, 1, 1);
        yarn.init(conf);
        yarn.start();
        yarn.waitForNodeManagersToConnect(60000);
        File made = new File(arguments[0], "yarn-site.xml.new");
        try (OutputStream out = new FileOutputStream(made)) {
            yarn.getConfig().writeXml(out);
        }
        made.renameTo(new File(arguments[0], "yarn-site.xml"));
        Thread.currentThread().join();
    }
}
