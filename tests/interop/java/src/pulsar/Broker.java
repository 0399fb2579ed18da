package pulsar;

import org.apache.pulsar.PulsarBrokerStarter;
import org.apache.pulsar.PulsarClusterMetadataSetup;

/** Sets a cluster of Pulsar up beside BookKeeper's, as its operators do, and runs a broker: two programs of Pulsar. */
public final class Broker {
    private Broker() {
    }

    /** Arguments: broker.conf, the cluster's name, its metadata store, BookKeeper's URI, the URLs of web and broker. */
    public static void main(String[] args) throws Exception {
        PulsarClusterMetadataSetup.main(new String[] {
            "--cluster", args[1], "--metadata-store", args[2], "--configuration-metadata-store", args[2],
            "--existing-bk-metadata-service-uri", args[3], "--web-service-url", args[4], "--broker-service-url", args[5],
            "--initial-num-transaction-coordinators", "1"
        });
        PulsarBrokerStarter.main(new String[] {"--broker-conf", args[0]});
    }
}
