package interop;

import static interop.Setting.KEY;
import static interop.Setting.add;
import static interop.Setting.await;
import static interop.Setting.equal;
import static interop.Setting.eventually;
import static interop.Setting.fails;
import static interop.Setting.finish;
import static interop.Setting.payload;
import static interop.Setting.that;
import static interop.Setting.totalLength;
import static interop.Setting.verify;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Enumeration;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.BKException.Code;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;

/** The older client API: explicit ids of entries and ledgers, and what metadata tells. */
final class IdChecks {

    // -- explicit entry ids --------------------------------------------------------------------------------------------

    @Check(perDigest = true)
    void explicitIdsInOrder(Setting s) throws Exception {
        LedgerHandle writer = s.bk().createLedgerAdv(3, 3, 2, s.oldDigest(), KEY);
        for (int i = 0; i < 10; i++) {
            equal(i, writer.addEntry(i, payload(i)), "entry id");
        }
        writer.close();
        try (LedgerHandle reader = s.open(writer.getId())) {
            verify(reader.readEntries(0, 9), 0, 9);
        }
    }

    @Check
    void explicitIdsInAnyOrder(Setting s) throws Exception {
        LedgerHandle writer = s.bk().createLedgerAdv(3, 3, 2, s.oldDigest(), KEY);
        int count = 50;
        CountDownLatch done = new CountDownLatch(count);
        AtomicInteger failed = new AtomicInteger();
        for (int i = 0; i < count; i++) {
            int id = (i * 13 + 49) % count; // entry 0 comes in the middle, so others wait for it
            writer.asyncAddEntry(id, payload(id), (rc, handle, entry, ctx) -> {
                failed.addAndGet(rc);
                done.countDown();
            }, null);
        }
        that(done.await(20, TimeUnit.SECONDS), "not all adds were answered");
        equal(0, failed.get(), "result code");
        writer.close();
        try (LedgerHandle reader = s.open(writer.getId())) {
            equal(count - 1, reader.getLastAddConfirmed(), "last add confirmed");
            Enumeration<LedgerEntry> entries = reader.readEntries(0, count - 1);
            for (int i = 0; i < count; i++) {
                that(Arrays.equals(payload(i), entries.nextElement().getEntry()), "entry " + i + " has other bytes");
            }
        }
    }

    @Check
    void explicitIdTwice(Setting s) throws Exception {
        LedgerHandle writer = s.bk().createLedgerAdv(3, 3, 2, s.oldDigest(), KEY);
        writer.addEntry(0, payload(0));
        writer.addEntry(1, payload(1));
        fails(() -> writer.addEntry(0, payload(5)), Code.DuplicateEntryIdException);
        fails(() -> writer.addEntry(payload(2)), Code.IllegalOpException);
        writer.close();
        try (LedgerHandle reader = s.open(writer.getId())) {
            verify(reader.readEntries(0, 1), 0, 1);
        }
    }

    @Check
    void chosenLedgerId(Setting s) throws Exception {
        long wanted = (1L << 33) + System.nanoTime() % (1L << 32) * (s.v2 ? 2 : 3);
        LedgerHandle writer = s.bk().createLedgerAdv(wanted, 3, 3, 2, s.oldDigest(), KEY, null);
        equal(wanted, writer.getId(), "ledger id");
        writer.addEntry(0, payload(0));
        writer.close();
        fails(() -> s.bk().createLedgerAdv(wanted, 3, 3, 2, s.oldDigest(), KEY, null), Code.LedgerExistException);
        try (LedgerHandle reader = s.open(wanted)) {
            verify(reader.readEntries(0, 0), 0, 0);
        }
        s.bk().deleteLedger(wanted);
    }

    // -- metadata ------------------------------------------------------------------------------------------------------

    @Check
    void customMetadata(Setting s) throws Exception {
        Map<String, byte[]> custom = Map.of("application", "test".getBytes(StandardCharsets.UTF_8),
                                            "binary", new byte[] {0, -1, 10, 34});
        LedgerHandle writer = s.bk().createLedger(3, 3, 2, s.oldDigest(), KEY, custom);
        add(writer, 1);
        writer.close();
        try (LedgerHandle reader = s.open(writer.getId())) {
            Map<String, byte[]> found = reader.getCustomMetadata();
            equal(custom.keySet(), found.keySet(), "keys");
            for (Map.Entry<String, byte[]> wanted : custom.entrySet()) {
                that(Arrays.equals(wanted.getValue(), found.get(wanted.getKey())), wanted.getKey() + " differs");
            }
        }
    }

    @Check
    void factsOfALedger(Setting s) throws Exception {
        LedgerHandle writer = s.create(3, 2, 2);
        add(writer, 5);
        writer.close();
        try (LedgerHandle reader = s.open(writer.getId())) {
            equal(1, reader.getNumFragments(), "fragments");
            equal(3, reader.getNumBookies(), "bookies");
            that(Math.abs(System.currentTimeMillis() - reader.getCtime()) < 120_000, "creation time");
            equal(totalLength(5), reader.getLength(), "length");
            that(reader.isClosed(), "not closed");
        }
    }

    @Check
    void manyLedgersAtOnce(Setting s) throws Exception {
        Set<Long> ids = new HashSet<>();
        List<CompletableFuture<LedgerHandle>> creating = new ArrayList<>();
        for (int i = 0; i < 40; i++) {
            CompletableFuture<LedgerHandle> created = new CompletableFuture<>();
            s.bk().asyncCreateLedger(3, 2, 2, s.oldDigest(), KEY, (rc, handle, ctx) -> finish(created, rc, handle),
                    null, null);
            creating.add(created);
        }
        for (CompletableFuture<LedgerHandle> created : creating) {
            LedgerHandle writer = await(created);
            that(ids.add(writer.getId()), "ledger id " + writer.getId() + " was given twice");
            add(writer, 2);
            writer.close();
        }
        for (long id : ids) {
            s.bk().deleteLedger(id);
        }
    }

    @Check
    void aReaderThatKeepsItsMetadataFreshSeesTheClose(Setting s) throws Exception {
        LedgerHandle writer = s.create();
        add(writer, 3);
        try (LedgerHandle reader = s.openNoRecovery(writer.getId())) {
            add(writer, 2);
            writer.close();
            eventually(() -> reader.isClosed() && reader.readLastConfirmed() == 4, "the reader never saw the close");
            verify(reader.readEntries(0, 4), 0, 4);
        }
    }
}
