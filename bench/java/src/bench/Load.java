package bench;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Loads by Apache's client, in one process that stays, so that its code is compiled when it counts.
 *
 * <p>A request a line on standard input: {"load": "write"|"fill"|"paced"|"sequential"|"random"|"drop"|"forget", "uri": ..., ...}.
 * Answers on standard output: {"phase": "begin"} and {"phase": "end"} around what counts, then {"result": {...}} or {"error": text}.
 */
public final class Load {
    static final ObjectMapper JSON = new ObjectMapper();
    static final byte[] PASSWORD = new byte[0];
    private static PrintStream answers;
    private static final Map<String, BookKeeper> CLIENTS = new HashMap<>();

    private Load() {
    }

    public static void main(String[] args) throws Exception {
        answers = System.out;
        System.setOut(System.err);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JsonNode request = JSON.readTree(line);
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer.set("result", run(request));
            } catch (Throwable error) {
                StringWriter text = new StringWriter();
                error.printStackTrace(new PrintWriter(text));
                answer.put("error", text.toString());
            }
            say(answer);
            System.gc(); // what a load left behind is not paid for by the next
        }
        Runtime.getRuntime().halt(0);
    }

    private static ObjectNode run(JsonNode request) throws Exception {
        if (request.get("load").asText().equals("forget")) {
            for (boolean v2 : new boolean[] {false, true}) {
                BookKeeper gone = CLIENTS.remove(request.get("uri").asText() + v2);
                if (gone != null) {
                    gone.close();
                }
            }
            return JSON.createObjectNode();
        }
        BookKeeper client = client(request);
        return switch (request.get("load").asText()) {
            case "write", "fill" -> new Writing(client, request).run();
            case "paced" -> new Pacing(client, request).run();
            case "sequential" -> new Reading(client, request).sequential();
            case "random" -> new Reading(client, request).random();
            case "drop" -> drop(client, request);
            default -> throw new IllegalArgumentException(request.toString());
        };
    }

    /** Deletes ledgers. */
    private static ObjectNode drop(BookKeeper client, JsonNode request) throws Exception {
        for (JsonNode ledger : request.get("ledgers")) {
            client.deleteLedger(ledger.asLong());
        }
        return JSON.createObjectNode();
    }

    private static BookKeeper client(JsonNode request) throws Exception {
        String uri = request.get("uri").asText();
        boolean v2 = request.path("protocol").asInt(2) == 2;
        String key = uri + v2;
        BookKeeper known = CLIENTS.get(key);
        if (known == null) {
            ClientConfiguration conf = new ClientConfiguration();
            conf.setMetadataServiceUri(uri);
            conf.setUseV2WireProtocol(v2);
            conf.setThrottleValue(0); // its default is a limit of 5,000 adds a second for each handle
            conf.setAddEntryTimeout(30);
            conf.setReadEntryTimeout(30);
            request.path("client").fields().forEachRemaining(e -> conf.setProperty(e.getKey(), e.getValue().asText()));
            known = new BookKeeper(conf);
            CLIENTS.put(key, known);
        }
        return known;
    }

    static void phase(String name) {
        say(JSON.createObjectNode().put("phase", name));
    }

    private static synchronized void say(ObjectNode answer) {
        answers.println(answer);
        answers.flush();
    }

    /** p50, p99, p99.9 and the largest in milliseconds. */
    static void quantiles(ObjectNode result, Histogram times) {
        result.put("p50_ms", times.quantile(0.5)).put("p99_ms", times.quantile(0.99));
        result.put("p999_ms", times.quantile(0.999)).put("max_ms", times.quantile(1.0));
        result.set("latency_ms", spectrum(times));
    }

    /** Latency at a row of percentiles, for plots. */
    private static ObjectNode spectrum(Histogram times) {
        ObjectNode found = JSON.createObjectNode();
        for (double share : new double[] {0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9999}) {
            found.put(Double.toString(share), times.quantile(share));
        }
        return found;
    }
}
