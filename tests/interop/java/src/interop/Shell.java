package interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.bookkeeper.bookie.BookieShell;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.util.EntryFormatter;
import org.apache.bookkeeper.util.LedgerIdFormatter;

/** Apache's bookkeeper shell, in this process. One command at a time: its output is taken from the log. */
final class Shell {

    static ServerConfiguration configuration(JsonNode args) {
        ServerConfiguration conf = new ServerConfiguration();
        args.get("conf").fields().forEachRemaining(
                field -> conf.setProperty(field.getKey(), field.getValue().asText()));
        return conf;
    }

    /** {"conf": {...}, "arguments": ["listbookies", "-rw"]} -> {"code": 0, "output": "..."} */
    synchronized Object run(JsonNode args) throws Exception {
        ByteArrayOutputStream output = new ByteArrayOutputStream();
        PrintStream before = System.err;
        PrintStream capture = new PrintStream(output, true, StandardCharsets.UTF_8);
        InputStream input = System.in;
        int code;
        try {
            System.setErr(capture);
            System.setOut(capture);
            System.setIn(InputStream.nullInputStream());
            code = shell(args).run(arguments(args));
        } catch (Exception error) {
            error.printStackTrace(capture);
            code = -1;
        } finally {
            System.setErr(before);
            System.setOut(before);
            System.setIn(input);
        }
        return Map.of("code", code, "output", output.toString(StandardCharsets.UTF_8));
    }

    /** The same beside others, for commands that take long: only the code is told. */
    Object aside(JsonNode args) throws Exception {
        return shell(args).run(arguments(args));
    }

    private static BookieShell shell(JsonNode args) throws Exception {
        ServerConfiguration conf = configuration(args);
        BookieShell shell = new BookieShell(LedgerIdFormatter.newLedgerIdFormatter("long", conf),
                                            EntryFormatter.newEntryFormatter("string", conf));
        shell.setConf(conf);
        return shell;
    }

    private static String[] arguments(JsonNode args) {
        List<String> arguments = new ArrayList<>();
        args.get("arguments").forEach(argument -> arguments.add(argument.asText()));
        return arguments.toArray(new String[0]);
    }
}
