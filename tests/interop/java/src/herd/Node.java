package herd;

import herddb.server.Server;
import herddb.server.ServerConfiguration;
import java.nio.file.Path;
import java.util.Properties;

/** A server of HerdDB; arguments: its directory and its settings, NAME=VALUE each. */
public final class Node {
    private Node() {
    }

    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        for (int i = 1; i < args.length; i++) {
            String[] words = args[i].split("=", 2);
            settings.setProperty(words[0], words[1]);
        }
        settings.setProperty("server.base.dir", args[0]);
        Server server = new Server(new ServerConfiguration(settings));
        server.start();
        System.out.println("ready 0");
        while (System.in.read() >= 0) {
            continue;
        }
        Runtime.getRuntime().halt(0);
    }
}
