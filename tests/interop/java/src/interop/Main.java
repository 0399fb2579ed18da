package interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * One long-lived process: a JSON request a line on standard input, an answer a line on standard output, in any order.
 * {"id": 1, "call": "Room.name", "args": {...}} -> {"id": 1, "ok": true, "value": ...} or {"id": 1, "ok": false,
 * "error": exception class, "detail": text}. Ends with its input.
 */
public final class Main {
    static final ObjectMapper JSON = new ObjectMapper();
    private static final Map<String, Object> ROOMS = new java.util.concurrent.ConcurrentHashMap<>();

    private Main() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        // Whatever Apache's code prints goes to the log; what asks for a confirmation finds no one there.
        System.setOut(System.err);
        System.setIn(InputStream.nullInputStream());
        ExecutorService threads = Executors.newCachedThreadPool(task -> {
            Thread thread = new Thread(task);
            thread.setDaemon(true);
            return thread;
        });
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JsonNode request = JSON.readTree(line);
            threads.execute(() -> {
                ObjectNode answer = answer(request);
                synchronized (answers) {
                    answers.println(answer);
                    answers.flush();
                }
            });
        }
        // No hooks: nothing here needs an orderly end, and a client that hangs shall not keep the process.
        Runtime.getRuntime().halt(0);
    }

    private static ObjectNode answer(JsonNode request) {
        ObjectNode answer = JSON.createObjectNode().put("id", request.get("id").asLong());
        try {
            Object value = call(request.get("call").asText(), request.path("args"));
            return answer.put("ok", true).set("value", JSON.valueToTree(value));
        } catch (Throwable error) {
            StringWriter trace = new StringWriter();
            error.printStackTrace(new PrintWriter(trace, true));
            return answer.put("ok", false).put("error", error.getClass().getSimpleName()).put("detail", trace.toString());
        }
    }

    private static Object call(String name, JsonNode args) throws Throwable {
        int dot = name.indexOf('.');
        Object room = ROOMS.computeIfAbsent(name.substring(0, dot), Main::room);
        for (Method method : room.getClass().getDeclaredMethods()) {
            if (method.getName().equals(name.substring(dot + 1)) && method.getParameterCount() == 1) {
                try {
                    if (method.getParameterTypes()[0] != Setting.class) {
                        return method.invoke(room, args);
                    }
                    try (Setting setting = new Setting(args)) {
                        return method.invoke(room, setting);
                    }
                } catch (InvocationTargetException wrapped) {
                    throw wrapped.getCause();
                }
            }
        }
        throw new IllegalArgumentException("no such call: " + name);
    }

    private static Object room(String name) {
        try {
            return Class.forName("interop." + name).getDeclaredConstructor().newInstance();
        } catch (ReflectiveOperationException error) {
            throw new IllegalArgumentException("no such room: " + name, error);
        }
    }
}
