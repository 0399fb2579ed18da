package interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Enumeration;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BKException.Code;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.conf.ClientConfiguration;

/** What one check runs on: the cluster, the wire protocol, the digest; and the words that checks are written in. */
final class Setting implements AutoCloseable {
    static final byte[] KEY = "secret".getBytes(StandardCharsets.UTF_8);
    static final long DEADLINE_NS = TimeUnit.SECONDS.toNanos(20);
    static final int MAX_FRAME_BYTES = 5 * 1024 * 1024;
    private static final Map<String, BookKeeper> SHARED = new ConcurrentHashMap<>();

    final String uri;
    final boolean v2;
    final DigestType digest;
    final JsonNode args;
    private final List<BookKeeper> opened = new ArrayList<>();

    Setting(JsonNode args) {
        this.args = args;
        this.uri = args.get("uri").asText();
        this.v2 = args.path("wire").asText("v3").equals("v2");
        this.digest = DigestType.valueOf(args.path("digest").asText("CRC32C"));
    }

    /** The same in the older API's own enum. */
    BookKeeper.DigestType oldDigest() {
        return BookKeeper.DigestType.valueOf(digest.name());
    }

    /** What a test wants besides: {"settings": {NAME: VALUE}}. */
    static void change(ClientConfiguration conf, JsonNode args) {
        args.path("settings").fields().forEachRemaining(one -> conf.setProperty(one.getKey(), one.getValue().asText()));
    }

    // -- clients ------------------------------------------------------------------------------------------------

    static ClientConfiguration configuration(String uri, boolean v2) {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri(uri);
        conf.setUseV2WireProtocol(v2);
        conf.setThrottleValue(0);
        conf.setNumIOThreads(1);
        conf.setNumWorkerThreads(2);
        return conf;
    }

    /** The client that all checks with the same cluster and protocol share. */
    BookKeeper bk() throws Exception {
        return shared("plain", conf -> { });
    }

    /** A shared client whose writers publish their last entry when they are idle. */
    BookKeeper explicitLacClient() throws Exception {
        return shared("lac", conf -> conf.setExplictLacInterval(20));
    }

    private BookKeeper shared(String kind, Consumer<ClientConfiguration> change) throws Exception {
        String key = uri + ' ' + v2 + ' ' + kind;
        synchronized (SHARED) {
            if (!SHARED.containsKey(key)) {
                ClientConfiguration conf = configuration(uri, v2);
                change(conf, args);
                change.accept(conf);
                SHARED.put(key, BookKeeper.forConfig(conf).build());
            }
            return SHARED.get(key);
        }
    }

    /** A client of this check alone; closed at its end. */
    BookKeeper ownClient(Consumer<ClientConfiguration> change) throws Exception {
        ClientConfiguration conf = configuration(uri, v2);
        change(conf, args);
        change.accept(conf);
        BookKeeper own = BookKeeper.forConfig(conf).build();
        opened.add(own);
        return own;
    }

    @Override
    public void close() {
        opened.forEach(Setting::closeAside);
    }

    /** A client takes two seconds to close; nobody waits for it. */
    static void closeAside(BookKeeper client) {
        Thread closing = new Thread(() -> {
            try {
                client.close();
            } catch (BKException | InterruptedException error) {
                error.printStackTrace();
            }
        }, "closing");
        closing.setDaemon(true);
        closing.start();
    }

    // -- the older API, shortened ---------------------------------------------------------------------------------

    LedgerHandle create() throws Exception {
        return create(3, 3, 2);
    }

    LedgerHandle create(int ensemble, int writeQuorum, int ackQuorum) throws Exception {
        return bk().createLedger(ensemble, writeQuorum, ackQuorum, oldDigest(), KEY);
    }

    LedgerHandle open(long ledger) throws Exception {
        return bk().openLedger(ledger, oldDigest(), KEY);
    }

    LedgerHandle openNoRecovery(long ledger) throws Exception {
        return bk().openLedgerNoRecovery(ledger, oldDigest(), KEY);
    }

    // -- entries --------------------------------------------------------------------------------------------------

    /** Tells its number and differs in length from its neighbours; tests/interop/payload.py makes the same. */
    static byte[] payload(long number) {
        byte[] bytes = new byte[24 + (int) (number * 37 % 200)];
        Arrays.fill(bytes, (byte) ('a' + number % 26));
        byte[] head = ("entry " + number + " ").getBytes(StandardCharsets.UTF_8);
        System.arraycopy(head, 0, bytes, 0, head.length);
        return bytes;
    }

    static void add(LedgerHandle writer, int count) throws Exception {
        for (int i = 0; i < count; i++) {
            long next = writer.getLastAddPushed() + 1;
            equal(next, writer.addEntry(payload(next)), "id of the entry added");
        }
    }

    static void verify(Enumeration<LedgerEntry> entries, long first, long last) {
        long length = -1;
        for (long id = first; id <= last; id++) {
            that(entries.hasMoreElements(), "entry " + id + " is missing");
            LedgerEntry entry = entries.nextElement();
            equal(id, entry.getEntryId(), "entry id");
            that(Arrays.equals(payload(id), entry.getEntry()), "entry " + id + " has other bytes");
            that(length < 0 || entry.getLength() == length + payload(id).length, "entry " + id + " has another length");
            length = entry.getLength();
        }
        that(!entries.hasMoreElements(), "more entries than asked for");
    }

    static void verify(LedgerEntries entries, long first, long last) {
        long id = first;
        try (entries) {
            for (org.apache.bookkeeper.client.api.LedgerEntry entry : entries) {
                equal(id, entry.getEntryId(), "entry id");
                that(Arrays.equals(payload(id), entry.getEntryBytes()), "entry " + id + " has other bytes");
                id++;
            }
        }
        equal(last + 1, id, "the id after the last entry read");
    }

    static long totalLength(long count) {
        long sum = 0;
        for (long i = 0; i < count; i++) {
            sum += payload(i).length;
        }
        return sum;
    }

    // -- expectations -----------------------------------------------------------------------------------------------

    static void that(boolean holds, String otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise);
        }
    }

    static void equal(Object wanted, Object found, String what) {
        boolean numbers = wanted instanceof Number && found instanceof Number;
        boolean same = numbers ? ((Number) wanted).longValue() == ((Number) found).longValue()
                : Objects.equals(wanted, found);
        that(same, what + ": wanted " + wanted + ", found " + found);
    }

    /** The action must fail with one of these codes of BKException.Code. */
    static void fails(Callable<?> action, int... codes) throws Exception {
        Object value;
        try {
            value = action.call();
        } catch (Exception error) {
            Throwable cause = error;
            while ((cause instanceof ExecutionException || cause instanceof CompletionException)
                    && cause.getCause() != null) {
                cause = cause.getCause();
            }
            int code = cause instanceof org.apache.bookkeeper.client.api.BKException
                    ? ((org.apache.bookkeeper.client.api.BKException) cause).getCode() : 1;
            if (Arrays.stream(codes).anyMatch(wanted -> wanted == code)) {
                return;
            }
            throw new AssertionError("failed with " + cause + " (" + code + "), wanted " + names(codes), error);
        }
        throw new AssertionError("did not fail but gave " + value + ", wanted " + names(codes));
    }

    private static String names(int[] codes) {
        StringBuilder names = new StringBuilder();
        for (int code : codes) {
            names.append(BKException.getMessage(code)).append(" (").append(code).append(") ");
        }
        return names.toString();
    }

    /** Ask again until it holds. */
    static void eventually(Callable<Boolean> holds, String otherwise) throws Exception {
        long limit = System.nanoTime() + DEADLINE_NS;
        while (!holds.call()) {
            that(System.nanoTime() < limit, otherwise);
            Thread.sleep(10);
        }
    }

    /** The end of a call with a callback. */
    static <T> void finish(CompletableFuture<T> future, int rc, T value) {
        if (rc == Code.OK) {
            future.complete(value);
        } else {
            future.completeExceptionally(BKException.create(rc));
        }
    }

    static <T> T await(java.util.concurrent.Future<T> future) throws Exception {
        try {
            return future.get(DEADLINE_NS, TimeUnit.NANOSECONDS);
        } catch (ExecutionException wrapped) {
            if (wrapped.getCause() instanceof Exception) {
                throw (Exception) wrapped.getCause();
            }
            throw new IOException(wrapped.getCause());
        }
    }
}
