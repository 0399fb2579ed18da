package interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.bookie.BookieImpl;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.replication.AuditorElector;
import org.apache.bookkeeper.replication.AutoRecoveryMain;
import org.apache.bookkeeper.replication.ReplicationWorker;

/** Apache's auditor and replication worker, both or one of them alone. */
final class AutoRecovery {
    private static final Map<Long, AutoCloseable> RUNNING = new ConcurrentHashMap<>();
    private static final AtomicLong NEXT = new AtomicLong();

    Object start(JsonNode args) throws Exception {
        AutoRecoveryMain main = new AutoRecoveryMain(Shell.configuration(args));
        main.start();
        return keep(main::shutdown);
    }

    Object startAuditor(JsonNode args) throws Exception {
        ServerConfiguration conf = Shell.configuration(args);
        AuditorElector elector = new AuditorElector(BookieImpl.getBookieId(conf).toString(), conf);
        elector.start();
        return keep(elector::shutdown);
    }

    Object startWorker(JsonNode args) throws Exception {
        ReplicationWorker worker = new ReplicationWorker(Shell.configuration(args));
        worker.start();
        return keep(worker::shutdown);
    }

    Object stop(JsonNode args) throws Exception {
        AutoCloseable running = RUNNING.remove(args.get("number").asLong());
        if (running != null) {
            running.close();
        }
        return null;
    }

    private static long keep(AutoCloseable running) {
        long number = NEXT.incrementAndGet();
        RUNNING.put(number, running);
        return number;
    }
}
