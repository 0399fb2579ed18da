package interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.LedgerHandleAdv;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteFlag;

/**
 * Single steps for tests that a Python client takes part in. Entries are Setting.payload(entry id). A call may take as
 * long as what it waits for; others go on meanwhile.
 */
final class Handles {
    private static final Map<Long, Writing> WRITERS = new ConcurrentHashMap<>();
    private static final Map<String, BookKeeper> CLIENTS = new ConcurrentHashMap<>();
    private static final AtomicLong NEXT = new AtomicLong();
    private static final int WINDOW = 200;

    /** A writer and what was acknowledged of it. */
    private static final class Writing {
        final LedgerHandle handle;
        final AtomicLong acknowledged = new AtomicLong(-1);
        final AtomicInteger failed = new AtomicInteger();
        final AtomicBoolean stop = new AtomicBoolean();
        volatile CompletableFuture<Void> running = CompletableFuture.completedFuture(null);

        Writing(LedgerHandle handle) {
            this.handle = handle;
        }

        Map<String, Object> state() {
            Map<String, Object> state = new LinkedHashMap<>();
            state.put("acknowledged", acknowledged.get());
            state.put("failed", failed.get());
            state.put("error", failed.get() == 0 ? "" : BKException.getMessage(failed.get()));
            return state;
        }
    }

    private static byte[] key(JsonNode args) {
        return args.path("password").asText("secret").getBytes(StandardCharsets.UTF_8);
    }

    private static BookKeeper client(JsonNode args) throws Exception {
        Setting s = new Setting(args);
        String name = s.uri + s.v2 + args.path("client").asText("");
        synchronized (CLIENTS) {
            if (!CLIENTS.containsKey(name)) {
                var conf = Setting.configuration(s.uri, s.v2);
                conf.setExplictLacInterval(args.path("lac_ms").asInt(20));
                Setting.change(conf, args);
                CLIENTS.put(name, BookKeeper.forConfig(conf).build());
            }
            return CLIENTS.get(name);
        }
    }

    /** Close a client by its name, with its open writers: as if its process had ended. */
    Object abandon(JsonNode args) throws Exception {
        Setting s = new Setting(args);
        BookKeeper client = CLIENTS.remove(s.uri + s.v2 + args.path("client").asText(""));
        if (client != null) {
            Setting.closeAside(client);
        }
        return null;
    }

    Object create(JsonNode args) throws Exception {
        Setting s = new Setting(args);
        var builder = client(args).newCreateLedgerOp().withEnsembleSize(args.path("e").asInt(3))
                .withWriteQuorumSize(args.path("qw").asInt(3)).withAckQuorumSize(args.path("qa").asInt(2))
                .withDigestType(s.digest).withPassword(key(args));
        if (args.path("deferred").asBoolean()) {
            builder = builder.withWriteFlags(WriteFlag.DEFERRED_SYNC);
        }
        if (args.has("custom")) {
            Map<String, byte[]> custom = new LinkedHashMap<>();
            args.get("custom").fields().forEachRemaining(
                    field -> custom.put(field.getKey(), field.getValue().asText().getBytes(StandardCharsets.UTF_8)));
            builder = builder.withCustomMetadata(custom);
        }
        // Either kind is the older API's handle underneath.
        ReadHandle handle;
        if (args.has("ledger")) {
            handle = builder.makeAdv().withLedgerId(args.get("ledger").asLong()).execute().get();
        } else if (args.path("adv").asBoolean()) {
            handle = builder.makeAdv().execute().get();
        } else {
            handle = Setting.await(builder.execute());
        }
        long number = NEXT.incrementAndGet();
        WRITERS.put(number, new Writing((LedgerHandle) handle));
        return Map.of("writer", number, "ledger", handle.getId());
    }

    private static Writing writer(JsonNode args) {
        return WRITERS.get(args.get("writer").asLong());
    }

    /** Add `count` entries, waiting for them. */
    Object add(JsonNode args) throws Exception {
        Writing writing = writer(args);
        if (writing.handle instanceof LedgerHandleAdv) {
            long first = args.path("first").asLong(writing.handle.getLastAddPushed() + 1);
            for (long id = first; id < first + args.get("count").asLong(); id++) {
                writing.acknowledged.set(writing.handle.addEntry(id, Setting.payload(id)));
            }
        } else {
            for (int i = 0; i < args.get("count").asInt(); i++) {
                long next = writing.handle.getLastAddPushed() + 1;
                writing.acknowledged.set(writing.handle.append(Setting.payload(next)));
            }
        }
        return writing.state();
    }

    /** Add entries in the background, as fast as they are acknowledged, until stopWriting or an error. */
    Object startWriting(JsonNode args) {
        Writing writing = writer(args);
        long pauseMicros = args.path("pause_us").asLong(500);
        writing.running = CompletableFuture.runAsync(() -> {
            Semaphore window = new Semaphore(WINDOW);
            LedgerHandle handle = writing.handle;
            for (long next = handle.getLastAddPushed() + 1; !writing.stop.get() && writing.failed.get() == 0; next++) {
                window.acquireUninterruptibly();
                handle.asyncAddEntry(Setting.payload(next), (rc, lh, entry, ctx) -> {
                    if (rc == BKException.Code.OK) {
                        // Acknowledged in order, so one number tells all.
                        writing.acknowledged.set(entry);
                    } else {
                        writing.failed.compareAndSet(0, rc);
                    }
                    window.release();
                }, null);
                java.util.concurrent.locks.LockSupport.parkNanos(pauseMicros * 1000);
            }
            window.acquireUninterruptibly(WINDOW);
        }, task -> new Thread(task, "writing").start());
        return null;
    }

    /** Wait until `entry` is acknowledged (or the writer failed); gives its state. */
    Object awaitAcknowledged(JsonNode args) throws Exception {
        Writing writing = writer(args);
        long limit = System.nanoTime() + TimeUnit.SECONDS.toNanos(args.path("seconds").asLong(30));
        while (writing.acknowledged.get() < args.get("entry").asLong() && writing.failed.get() == 0) {
            Setting.that(System.nanoTime() < limit, "the writer stands at entry " + writing.acknowledged.get());
            Thread.sleep(5);
        }
        return writing.state();
    }

    Object stopWriting(JsonNode args) throws Exception {
        Writing writing = writer(args);
        writing.stop.set(true);
        writing.running.get(60, TimeUnit.SECONDS);
        return writing.state();
    }

    Object state(JsonNode args) {
        return writer(args).state();
    }

    Object force(JsonNode args) throws Exception {
        Writing writing = writer(args);
        Setting.await(writing.handle.force());
        return Map.of("last_confirmed", writing.handle.getLastAddConfirmed());
    }

    Object closeWriter(JsonNode args) throws Exception {
        Writing writing = writer(args);
        writing.handle.close();
        WRITERS.remove(args.get("writer").asLong());
        return Map.of("last_confirmed", writing.handle.getLastAddConfirmed());
    }

    private static ReadHandle reader(JsonNode args) throws Exception {
        return Setting.await(client(args).newOpenLedgerOp().withLedgerId(args.get("ledger").asLong())
                .withDigestType(new Setting(args).digest).withPassword(key(args))
                .withRecovery(args.path("recover").asBoolean()).execute());
    }

    /** Open (or recover) a ledger and compare each entry with what it must be. */
    Object read(JsonNode args) throws Exception {
        try (ReadHandle reader = reader(args)) {
            long last = args.has("last") ? args.get("last").asLong() : reader.getLastAddConfirmed();
            for (long first = args.path("first").asLong(0); first <= last; first += 500) {
                long end = Math.min(last, first + 499);
                if (args.path("unconfirmed").asBoolean()) {
                    Setting.verify(reader.readUnconfirmed(first, end), first, end);
                } else {
                    Setting.verify(reader.read(first, end), first, end);
                }
            }
            Map<String, Object> result = new LinkedHashMap<>();
            result.put("last", reader.getLastAddConfirmed());
            result.put("length", reader.getLength());
            result.put("closed", reader.isClosed());
            return result;
        }
    }

    /** Follow a ledger, by long poll on v3, until `until` was read or it is closed; each entry is compared. */
    Object tail(JsonNode args) throws Exception {
        boolean longPoll = !new Setting(args).v2;
        long until = args.get("until").asLong();
        long next = 0;
        long limit = System.nanoTime() + TimeUnit.SECONDS.toNanos(args.path("seconds").asLong(60));
        try (ReadHandle reader = reader(args)) {
            while (next <= until) {
                Setting.that(System.nanoTime() < limit, "tailing stands at entry " + (next - 1));
                long confirmed;
                if (longPoll) {
                    try (LastConfirmedAndEntry got = reader.readLastAddConfirmedAndEntry(next, 1000, false)) {
                        if (got.hasEntry()) {
                            LedgerEntry entry = got.getEntry();
                            Setting.equal(next, entry.getEntryId(), "entry that came along");
                            Setting.that(Arrays.equals(Setting.payload(next), entry.getEntryBytes()), "other bytes");
                        }
                        confirmed = got.getLastAddConfirmed();
                    } catch (BKException.BKNoSuchLedgerExistsException | BKException.BKNoSuchEntryException early) {
                        // Bookies that have nothing of the ledger say so instead of waiting.
                        confirmed = -1;
                        Thread.sleep(5);
                    }
                } else {
                    confirmed = Math.max(reader.readLastAddConfirmed(), explicit(reader));
                }
                if (confirmed >= next) {
                    long end = Math.min(confirmed, next + 499);
                    Setting.verify(reader.read(next, end), next, end);
                    next = end + 1;
                } else if (reader.isClosed()) {
                    break;
                } else if (!longPoll) {
                    Thread.sleep(5);
                }
            }
        }
        return Map.of("last", next - 1);
    }

    private static long explicit(ReadHandle reader) throws Exception {
        return ((LedgerHandle) reader).readExplicitLastConfirmed();
    }

    Object delete(JsonNode args) throws Exception {
        client(args).deleteLedger(args.get("ledger").asLong());
        return null;
    }

    Object list(JsonNode args) throws Exception {
        List<Long> ids = new ArrayList<>();
        try (var result = Setting.await(client(args).newListLedgersOp().execute())) {
            result.toIterable().forEach(ids::add);
        }
        return ids;
    }

    Object metadata(JsonNode args) throws Exception {
        LedgerMetadata found = Setting.await(client(args).getLedgerMetadata(args.get("ledger").asLong()));
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("state", found.getState().name());
        facts.put("last_entry", found.getLastEntryId());
        facts.put("length", found.getLength());
        facts.put("ensemble_size", found.getEnsembleSize());
        facts.put("write_quorum", found.getWriteQuorumSize());
        facts.put("ack_quorum", found.getAckQuorumSize());
        facts.put("digest", found.getDigestType().name());
        facts.put("password", new String(found.getPassword(), StandardCharsets.UTF_8));
        facts.put("format", found.getMetadataFormatVersion());
        Map<String, String> custom = new LinkedHashMap<>();
        found.getCustomMetadata().forEach((name, value) -> custom.put(name, new String(value, StandardCharsets.UTF_8)));
        facts.put("custom", custom);
        Map<String, List<String>> fragments = new LinkedHashMap<>();
        found.getAllEnsembles().forEach((first, members) -> {
            List<String> names = new ArrayList<>();
            members.forEach(member -> names.add(member.toString()));
            fragments.put(String.valueOf(first), names);
        });
        facts.put("fragments", fragments);
        return facts;
    }
}
