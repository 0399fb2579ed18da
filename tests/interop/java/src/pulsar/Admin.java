package pulsar;

import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.common.policies.data.BookieInfo;

/** What `pulsar-admin bookies set-bookie-rack` and `pulsar-admin namespaces unload` do, with the client that they use. */
public final class Admin {
    private Admin() {}

    public static void main(String[] arguments) throws Exception {
        try (PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(arguments[0]).build()) {
            switch (arguments[1]) {
                case "set-bookie-rack" -> admin.bookies().updateBookieRackInfo(arguments[2], "default",
                        BookieInfo.builder().hostname(arguments[2]).rack(arguments[3]).build());
                case "unload" -> admin.namespaces().unload(arguments[2]);
                default -> throw new IllegalArgumentException(arguments[1]);
            }
        }
        System.exit(0);
    }
}
