package interop;

import static interop.Setting.KEY;
import static interop.Setting.add;
import static interop.Setting.await;
import static interop.Setting.equal;
import static interop.Setting.fails;
import static interop.Setting.finish;
import static interop.Setting.payload;
import static interop.Setting.that;
import static interop.Setting.totalLength;
import static interop.Setting.verify;

import io.netty.buffer.Unpooled;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Enumeration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.BKException.Code;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/** The older client API, BookKeeper and LedgerHandle: writing and reading. */
final class LedgerChecks {

    @Check(perDigest = true)
    void addAndReadBack(Setting s) throws Exception {
        long ledger;
        try (LedgerHandle writer = s.create()) {
            ledger = writer.getId();
            add(writer, 20);
            equal(19, writer.getLastAddPushed(), "last add pushed");
            equal(19, writer.getLastAddConfirmed(), "last add confirmed of the writer");
            verify(writer.readEntries(0, 19), 0, 19);
        }
        try (LedgerHandle reader = s.open(ledger)) {
            equal(19, reader.getLastAddConfirmed(), "last add confirmed");
            equal(totalLength(20), reader.getLength(), "length");
            verify(reader.readEntries(0, 19), 0, 19);
        }
    }

    /** As fast as 5,000 outstanding adds go, with the client's own settings but for the throttle. */
    @Check
    void noAddFailsAtFiveThousandOutstanding(Setting s) throws Exception {
        ClientConfiguration untouched = new ClientConfiguration();
        BookKeeper client = s.ownClient(conf -> conf.setNumIOThreads(untouched.getNumIOThreads())
                .setNumWorkerThreads(untouched.getNumWorkerThreads()));
        int count = 60_000;
        int outstanding = 5_000;
        byte[] body = new byte[1024];
        AtomicInteger failed = new AtomicInteger();
        Semaphore room = new Semaphore(outstanding);
        LedgerHandle writer = client.createLedger(3, 3, 2, s.oldDigest(), KEY);
        for (int i = 0; i < count; i++) {
            that(room.tryAcquire(30, TimeUnit.SECONDS), "adds are not answered any more");
            writer.asyncAddEntry(body, (rc, handle, entry, ctx) -> {
                if (rc != Code.OK) {
                    failed.set(rc);
                }
                room.release();
            }, null);
        }
        that(room.tryAcquire(outstanding, 30, TimeUnit.SECONDS), "not all adds were answered");
        equal(0, failed.get(), "result code of an add");
        equal(count - 1L, writer.getLastAddConfirmed(), "last add confirmed");
        writer.close();
    }

    @Check
    void asyncAddsAreAcknowledgedInOrder(Setting s) throws Exception {
        int count = 2000;
        List<Long> acknowledged = new ArrayList<>();
        AtomicInteger failed = new AtomicInteger();
        CountDownLatch done = new CountDownLatch(count);
        LedgerHandle writer = s.create();
        for (int i = 0; i < count; i++) {
            writer.asyncAddEntry(payload(i), (rc, handle, entry, ctx) -> {
                if (rc == Code.OK) {
                    synchronized (acknowledged) {
                        acknowledged.add(entry);
                    }
                } else {
                    failed.set(rc);
                }
                done.countDown();
            }, null);
        }
        that(done.await(20, TimeUnit.SECONDS), "not all adds were answered");
        equal(0, failed.get(), "result code of an add");
        for (int i = 0; i < count; i++) {
            equal((long) i, acknowledged.get(i), "order of acknowledgements");
        }
        writer.close();
        try (LedgerHandle reader = s.open(writer.getId())) {
            verify(reader.readEntries(0, count - 1), 0, count - 1);
        }
    }

    @Check
    void addPartOfAnArray(Setting s) throws Exception {
        try (LedgerHandle writer = s.create()) {
            byte[] all = "0123456789".getBytes(StandardCharsets.UTF_8);
            writer.addEntry(all, 2, 5);
            Enumeration<LedgerEntry> entries = writer.readEntries(0, 0);
            equal("23456", new String(entries.nextElement().getEntry(), StandardCharsets.UTF_8), "entry");
        }
    }

    @Check(perDigest = true)
    void emptyEntries(Setting s) throws Exception {
        LedgerHandle writer = s.create();
        writer.addEntry(new byte[0]);
        writer.addEntry(payload(1));
        writer.addEntry(new byte[0]);
        writer.close();
        try (LedgerHandle reader = s.open(writer.getId())) {
            Enumeration<LedgerEntry> entries = reader.readEntries(0, 2);
            equal(0, entries.nextElement().getEntry().length, "size of entry 0");
            equal(payload(1).length, entries.nextElement().getEntry().length, "size of entry 1");
            equal(0, entries.nextElement().getEntry().length, "size of entry 2");
            equal(payload(1).length, reader.getLength(), "length");
        }
    }

    @Check(perDigest = true)
    void largestEntries(Setting s) throws Exception {
        // 256 bytes leave room for either protocol's packet around the entry
        byte[] large = new byte[Setting.MAX_FRAME_BYTES - 256];
        for (int i = 0; i < large.length; i++) {
            large[i] = (byte) (i * 31 + 7);
        }
        LedgerHandle writer = s.create();
        writer.addEntry(large);
        writer.addEntry(payload(1));
        writer.close();
        try (LedgerHandle reader = s.open(writer.getId())) {
            Enumeration<LedgerEntry> entries = reader.readEntries(0, 1);
            that(Arrays.equals(large, entries.nextElement().getEntry()), "the large entry has other bytes");
            that(Arrays.equals(payload(1), entries.nextElement().getEntry()), "the entry after it has other bytes");
        }
    }

    @Check
    void anEntryOverTheFrameLimitEndsTheLedgerOnly(Setting s) throws Exception {
        BookKeeper own = s.ownClient(conf -> conf.setAddEntryTimeout(2));
        LedgerHandle writer = own.createLedger(3, 3, 2, s.oldDigest(), KEY);
        add(writer, 3);
        // The bookies close the connection; with no other bookies to turn to the writer gives up.
        fails(() -> writer.addEntry(new byte[Setting.MAX_FRAME_BYTES]), Code.NotEnoughBookiesException);
        try (LedgerHandle reader = s.open(writer.getId())) {
            equal(2, reader.getLastAddConfirmed(), "last add confirmed");
            verify(reader.readEntries(0, 2), 0, 2);
        }
    }

    @Check
    void manyLargeEntriesInOneRead(Setting s) throws Exception {
        LedgerHandle writer = s.create();
        byte[] large = new byte[100_000];
        CountDownLatch done = new CountDownLatch(60);
        AtomicInteger failed = new AtomicInteger();
        for (int i = 0; i < 60; i++) {
            writer.asyncAddEntry(large, (rc, handle, entry, ctx) -> {
                failed.addAndGet(rc);
                done.countDown();
            }, null);
        }
        that(done.await(20, TimeUnit.SECONDS), "not all adds were answered");
        equal(0, failed.get(), "result code of the adds");
        writer.close();
        try (LedgerHandle reader = s.open(writer.getId())) {
            int read = 0;
            for (Enumeration<LedgerEntry> all = reader.readEntries(0, 59); all.hasMoreElements(); read++) {
                equal(large.length, all.nextElement().getEntry().length, "size of an entry");
            }
            equal(60, read, "entries read");
        }
    }

    @Check
    void readRanges(Setting s) throws Exception {
        LedgerHandle writer = s.create();
        add(writer, 50);
        writer.close();
        try (LedgerHandle reader = s.open(writer.getId())) {
            verify(reader.readEntries(0, 0), 0, 0);
            verify(reader.readEntries(7, 31), 7, 31);
            verify(reader.readEntries(49, 49), 49, 49);
            fails(() -> reader.readEntries(0, 50), Code.ReadException);
            fails(() -> reader.readEntries(50, 60), Code.ReadException);
            fails(() -> reader.readEntries(5, 4), Code.IncorrectParameterException);
        }
    }

    @Check(perDigest = true)
    void readUnconfirmed(Setting s) throws Exception {
        LedgerHandle writer = s.create();
        add(writer, 10);
        try (LedgerHandle reader = s.openNoRecovery(writer.getId())) {
            that(reader.getLastAddConfirmed() <= 9, "last add confirmed is ahead of the writer");
            // The last entry is on the bookies although no later entry has confirmed it.
            verify(reader.readUnconfirmedEntries(0, 9), 0, 9);
            fails(() -> reader.readUnconfirmedEntries(0, 10), Code.NoSuchEntryException);
        }
        writer.close();
    }

    @Check
    void readUnconfirmedOfAnEmptyLedger(Setting s) throws Exception {
        LedgerHandle writer = s.create();
        try (LedgerHandle reader = s.openNoRecovery(writer.getId())) {
            equal(-1, reader.getLastAddConfirmed(), "last add confirmed");
            fails(() -> reader.readUnconfirmedEntries(0, 0),
                  Code.NoSuchEntryException, Code.NoSuchLedgerExistsException);
        }
        writer.close();
    }

    @Check
    void readLastEntry(Setting s) throws Exception {
        LedgerHandle writer = s.create();
        add(writer, 5);
        writer.close();
        try (LedgerHandle reader = s.open(writer.getId())) {
            LedgerEntry last = reader.readLastEntry();
            equal(4, last.getEntryId(), "id");
            that(Arrays.equals(payload(4), last.getEntry()), "other bytes");
        }
    }

    @Check
    void severalReadersAtOnce(Setting s) throws Exception {
        LedgerHandle writer = s.create();
        add(writer, 100);
        writer.close();
        List<CompletableFuture<Void>> readers = new ArrayList<>();
        for (int i = 0; i < 8; i++) {
            readers.add(CompletableFuture.runAsync(() -> {
                try (LedgerHandle reader = s.open(writer.getId())) {
                    verify(reader.readEntries(0, 99), 0, 99);
                } catch (Exception error) {
                    throw new IllegalStateException(error);
                }
            }));
        }
        for (CompletableFuture<Void> reader : readers) {
            await(reader);
        }
    }

    @Check
    void stripedLedgers(Setting s) throws Exception {
        int[][] shapes = {{3, 2, 2}, {3, 2, 1}, {3, 1, 1}, {2, 2, 1}, {1, 1, 1}};
        for (int[] shape : shapes) {
            LedgerHandle writer = s.create(shape[0], shape[1], shape[2]);
            add(writer, 13);
            writer.close();
            try (LedgerHandle reader = s.open(writer.getId())) {
                verify(reader.readEntries(0, 12), 0, 12);
            }
        }
    }

    @Check
    void callbackForms(Setting s) throws Exception {
        CompletableFuture<LedgerHandle> created = new CompletableFuture<>();
        s.bk().asyncCreateLedger(3, 2, s.oldDigest(), KEY, (rc, handle, ctx) -> finish(created, rc, handle), null);
        LedgerHandle writer = await(created);
        add(writer, 3);
        CompletableFuture<Void> closed = new CompletableFuture<>();
        writer.asyncClose((rc, handle, ctx) -> finish(closed, rc, null), null);
        await(closed);
        CompletableFuture<Boolean> isClosed = new CompletableFuture<>();
        s.bk().asyncIsClosed(writer.getId(), (rc, value, ctx) -> finish(isClosed, rc, value), null);
        equal(true, await(isClosed), "is closed");
        CompletableFuture<LedgerHandle> opened = new CompletableFuture<>();
        s.bk().asyncOpenLedger(writer.getId(), s.oldDigest(), KEY, (rc, handle, ctx) -> finish(opened, rc, handle),
                null);
        LedgerHandle reader = await(opened);
        CompletableFuture<Enumeration<LedgerEntry>> read = new CompletableFuture<>();
        reader.asyncReadEntries(0, 2, (rc, handle, entries, ctx) -> finish(read, rc, entries), null);
        verify(await(read), 0, 2);
        CompletableFuture<Enumeration<LedgerEntry>> unconfirmed = new CompletableFuture<>();
        reader.asyncReadUnconfirmedEntries(1, 2, (rc, handle, entries, ctx) -> finish(unconfirmed, rc, entries), null);
        verify(await(unconfirmed), 1, 2);
        CompletableFuture<Enumeration<LedgerEntry>> last = new CompletableFuture<>();
        reader.asyncReadLastEntry((rc, handle, entries, ctx) -> finish(last, rc, entries), null);
        verify(await(last), 2, 2);
        reader.close();
        CompletableFuture<Void> deleted = new CompletableFuture<>();
        s.bk().asyncDeleteLedger(writer.getId(), (rc, ctx) -> finish(deleted, rc, null), null);
        await(deleted);
    }

    @Check
    void callbackFormsOfExplicitIds(Setting s) throws Exception {
        CompletableFuture<LedgerHandle> created = new CompletableFuture<>();
        s.bk().asyncCreateLedgerAdv(3, 3, 2, s.oldDigest(), KEY, (rc, handle, ctx) -> finish(created, rc, handle), null,
                Map.of("kind", new byte[] {1}));
        LedgerHandle writer = await(created);
        List<CompletableFuture<Long>> added = List.of(new CompletableFuture<>(), new CompletableFuture<>());
        for (int id : new int[] {1, 0}) {
            writer.asyncAddEntry(id, payload(id), (rc, handle, entry, ctx) -> finish(added.get(id), rc, entry), null);
        }
        equal(0, await(added.get(0)), "entry id");
        equal(1, await(added.get(1)), "entry id");
        CompletableFuture<LedgerHandle> opened = new CompletableFuture<>();
        s.bk().asyncOpenLedgerNoRecovery(writer.getId(), s.oldDigest(), KEY,
                (rc, handle, ctx) -> finish(opened, rc, handle), null);
        for (int id = 0; id < 2; id++) {
            // One by one: lengths grow in the order in which entries were added, not in that of their ids.
            verify(await(opened).readUnconfirmedEntries(id, id), id, id);
        }
        writer.close();
    }

    @Check
    void createWithDefaults(Setting s) throws Exception {
        LedgerHandle writer = s.bk().createLedger(s.oldDigest(), KEY);
        writer.addEntry(payload(0));
        writer.close();
        equal(3, writer.getLedgerMetadata().getEnsembleSize(), "ensemble size");
        equal(2, writer.getLedgerMetadata().getWriteQuorumSize(), "write quorum");
        LedgerHandle other = s.bk().createLedger(3, 2, s.oldDigest(), KEY);
        other.close();
        equal(2, other.getLedgerMetadata().getAckQuorumSize(), "ack quorum");
        that(Arrays.equals(other.getLedgerKey(), writer.getLedgerKey()), "one password gave two keys");
    }

    @Check
    void addBuffers(Setting s) throws Exception {
        LedgerHandle writer = s.create();
        for (int i = 0; i < 3; i++) {
            CompletableFuture<Long> added = new CompletableFuture<>();
            writer.asyncAddEntry(Unpooled.wrappedBuffer(payload(i)),
                    (rc, handle, entry, ctx) -> finish(added, rc, entry), null);
            equal(i, await(added), "entry id");
        }
        writer.close();
        verify(writer.readEntries(0, 2), 0, 2);
    }
}
