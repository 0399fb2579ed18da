package bench;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.bookkeeper.bookie.BookieImpl;
import org.apache.bookkeeper.bookie.LedgerStorage;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.server.EmbeddedServer;
import org.apache.bookkeeper.server.conf.BookieConfiguration;

/**
 * Apache's bookie as its own main program would run it, and a way to tell it between two measurements to flush and to
 * drop deleted ledgers, so that what one measurement left behind is not paid for by the next.
 *
 * <p>Argument: a configuration file. Standard input: {"do": "tidy"} or {"do": "stop"}, answered by {"done": ...}; its end
 * ends the process.
 */
public final class Bookie {
    private Bookie() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        ServerConfiguration conf = new ServerConfiguration();
        conf.loadConf(new File(args[0]).toURI().toURL());
        EmbeddedServer server = EmbeddedServer.builder(new BookieConfiguration(conf)).build();
        server.getLifecycleComponentStack().start();
        answers.println("{\"ready\":true}");
        answers.flush();
        LedgerStorage storage = ((BookieImpl) server.getBookieService().getServer().getBookie()).getLedgerStorage();
        ObjectMapper json = new ObjectMapper();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            JsonNode command = json.readTree(line);
            String what = command.get("do").asText();
            if (what.equals("tidy")) {
                storage.flush();
                storage.forceGC();
                while (storage.isInForceGC()) {
                    Thread.sleep(20);
                }
                System.gc();
            } else if (what.equals("stop")) {
                server.getLifecycleComponentStack().close();
            } else {
                throw new IllegalArgumentException(what);
            }
            answers.println("{\"done\":\"" + what + "\"}");
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }
}
