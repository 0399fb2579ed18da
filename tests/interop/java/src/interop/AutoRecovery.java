package interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.replication.AutoRecoveryMain;

/** Apache's auditor and replication worker. */
final class AutoRecovery {
    private static final Map<Long, AutoRecoveryMain> RUNNING = new ConcurrentHashMap<>();
    private static final AtomicLong NEXT = new AtomicLong();

    Object start(JsonNode args) throws Exception {
        AutoRecoveryMain main = new AutoRecoveryMain(Shell.configuration(args));
        main.start();
        long number = NEXT.incrementAndGet();
        RUNNING.put(number, main);
        return number;
    }

    Object stop(JsonNode args) {
        AutoRecoveryMain main = RUNNING.remove(args.get("number").asLong());
        if (main != null) {
            main.shutdown();
        }
        return null;
    }
}
