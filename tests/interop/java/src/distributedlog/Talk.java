package distributedlog;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.LockSupport;
import org.apache.distributedlog.DLSN;
import org.apache.distributedlog.DistributedLogConfiguration;
import org.apache.distributedlog.LogRecord;
import org.apache.distributedlog.LogRecordWithDLSN;
import org.apache.distributedlog.api.AsyncLogReader;
import org.apache.distributedlog.api.AsyncLogWriter;
import org.apache.distributedlog.api.DistributedLogManager;
import org.apache.distributedlog.api.namespace.Namespace;
import org.apache.distributedlog.api.namespace.NamespaceBuilder;
import org.apache.distributedlog.exceptions.ReadCancelledException;
import org.apache.distributedlog.impl.metadata.BKDLConfig;
import org.apache.distributedlog.metadata.DLMetadata;

/**
 * A client of DistributedLog that writes, follows and reads one log. Records are numbered from 0 by their transaction
 * ids; each has the bytes that its number says.
 *
 * <p>Commands are lines of standard input, at whose end it ends: "write RATE" (records in a second, in the background,
 * from the first number on that the log lacks), "follow" (in the background), "finish" (the writer closes its log),
 * "read" (all that the log has), "truncate NUMBER" (what is before it goes), "segments", "delete". Answers are lines:
 * "ready 0", "opened FIRST" (a writer begins with that number), "acknowledged N", "followed N", "read N",
 * "finished COUNT", "end COUNT", "truncated 0", "deleted 0", and "failed WHAT".
 */
public final class Talk {
    private static final String LOG = "numbers";
    private final Namespace namespace;
    private final AtomicBoolean writing = new AtomicBoolean();
    private Thread writer;

    private Talk(Namespace namespace) {
        this.namespace = namespace;
    }

    /** Arguments: the namespace's URI, the servers of ZooKeeper, the ledgers root. */
    public static void main(String[] args) throws Exception {
        URI uri = URI.create(args[0]);
        try {
            DLMetadata.create(new BKDLConfig(args[1], args[2])).create(uri);
        } catch (IOException bound) {
            System.err.println("another one bound it: " + bound);
        }
        // Nothing waits to be sent with others; segments are small and roll as soon as they are full.
        DistributedLogConfiguration conf = new DistributedLogConfiguration()
            .setCreateStreamIfNotExists(true).setOutputBufferSize(0).setImmediateFlushEnabled(true)
            .setPeriodicFlushFrequencyMilliSeconds(0).setLogSegmentRollingIntervalMinutes(0)
            .setMaxLogSegmentBytes(100_000).setLogSegmentRollingConcurrency(1000).setLockTimeout(20)
            .setExplicitTruncationByApplication(true).setZKSessionTimeoutSeconds(4);
        Talk talk = new Talk(NamespaceBuilder.newBuilder().conf(conf).uri(uri).build());
        say("ready 0");
        try (BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII))) {
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                talk.obey(line.split(" "));
            }
        } catch (Exception failure) {
            failure.printStackTrace();
            say("failed " + failure);
        }
        Runtime.getRuntime().halt(0);
    }

    private void obey(String[] words) throws Exception {
        switch (words[0]) {
            case "write":
                double rate = Double.parseDouble(words[1]);
                writing.set(true);
                writer = background(() -> write(rate));
                break;
            case "follow":
                background(this::follow);
                break;
            case "finish":
                writing.set(false);
                writer.join();
                break;
            case "read":
                read();
                break;
            case "truncate":
                truncate(Long.parseLong(words[1]));
                break;
            case "segments":
                segments();
                break;
            case "delete":
                namespace.deleteLog(LOG);
                say("deleted 0");
                break;
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private void write(double rate) throws Exception {
        long apart = (long) (TimeUnit.SECONDS.toNanos(1) / rate);
        try (DistributedLogManager log = namespace.openLog(LOG)) {
            AsyncLogWriter to = log.openAsyncLogWriter().get();
            long count = Math.max(0, to.getLastTxId() + 1);
            say("opened " + count);
            CompletableFuture<DLSN> last = CompletableFuture.completedFuture(null);
            long next = System.nanoTime();
            while (writing.get()) {
                long sent = count++;
                last = to.write(new LogRecord(sent, payload(sent))).whenComplete((place, failure) ->
                    say(failure == null ? "acknowledged " + sent : "failed " + sent + ": " + failure));
                next += apart;
                LockSupport.parkNanos(next - System.nanoTime());
            }
            last.get(60, TimeUnit.SECONDS);
            to.asyncClose().get();
            say("finished " + count);
        }
    }

    private void follow() throws Exception {
        while (!namespace.logExists(LOG)) {
            LockSupport.parkNanos(50_000_000);
        }
        try (DistributedLogManager log = namespace.openLog(LOG)) {
            for (long next = 0; ; ) {
                next = readFrom(log, next, Long.MAX_VALUE, "followed ");
            }
        }
    }

    private void read() throws Exception {
        long first;
        long next;
        try (DistributedLogManager log = namespace.openLog(LOG)) {
            long last = log.getLastTxId();
            // Of the segment that a truncation cuts in two, only the reader leaves out what is gone.
            AsyncLogReader from = log.openAsyncLogReader(log.getFirstDLSNAsync().get()).get();
            next = first = number(from.readNext().get());
            from.asyncClose().get();
            while (next <= last) {
                next = readFrom(log, next, last, "read ");
            }
        }
        say("end " + (next - first));
    }

    /**
     * Say the records from the first to the last; the number that is next. That is before the end when DistributedLog
     * closes the segment that it just began to read, which happens where two reads find the end of the one before it.
     */
    private static long readFrom(DistributedLogManager log, long first, long last, String word) throws Exception {
        AsyncLogReader from = log.openAsyncLogReader(first).get();
        long next = first;
        try {
            while (next <= last) {
                LogRecordWithDLSN record = from.readNext().get();
                if (number(record) != next) {
                    throw new IllegalStateException("record " + number(record) + " instead of " + next);
                }
                say(word + next++);
            }
        } catch (ExecutionException failed) {
            if (!(failed.getCause() instanceof ReadCancelledException)) {
                throw failed;
            }
        }
        from.asyncClose().get();
        return next;
    }

    private void truncate(long number) throws Exception {
        try (DistributedLogManager log = namespace.openLog(LOG)) {
            DLSN place = log.getDLSNNotLessThanTxId(number).get();
            AsyncLogWriter to = log.openAsyncLogWriter().get();
            say("truncated " + (to.truncate(place).get() ? 0 : 1));
            to.asyncClose().get();
        }
    }

    private void segments() throws Exception {
        try (DistributedLogManager log = namespace.openLog(LOG)) {
            say("end " + log.getLogSegments().size());
        }
    }

    private static Thread background(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Exception failure) {
                failure.printStackTrace();
                say("failed " + failure);
            }
        });
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private static byte[] payload(long number) {
        byte[] bytes = new byte[24 + (int) (number * 37 % 200)];
        Arrays.fill(bytes, (byte) ('a' + number % 26));
        byte[] head = ("record " + number + " ").getBytes(StandardCharsets.US_ASCII);
        System.arraycopy(head, 0, bytes, 0, head.length);
        return bytes;
    }

    /** Its number; an error for bytes that are not those of the number. */
    private static long number(LogRecordWithDLSN record) {
        byte[] bytes = record.getPayload();
        long number = record.getTransactionId();
        if (!Arrays.equals(bytes, payload(number))) {
            throw new IllegalStateException("record " + number + " has other bytes");
        }
        return number;
    }

    private static synchronized void say(String line) {
        System.out.println(line);
    }

    private interface Work {
        void run() throws Exception;
    }
}
