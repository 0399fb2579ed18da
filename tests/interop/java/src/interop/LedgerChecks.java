package interop;

import static interop.Setting.KEY;
import static interop.Setting.add;
import static interop.Setting.await;
import static interop.Setting.equal;
import static interop.Setting.eventually;
import static interop.Setting.fails;
import static interop.Setting.payload;
import static interop.Setting.that;
import static interop.Setting.totalLength;
import static interop.Setting.verify;

import io.netty.buffer.Unpooled;
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
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BKException.Code;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;

/** The older client API: BookKeeper and LedgerHandle. */
final class LedgerChecks {

    // -- writing and reading ------------------------------------------------------------------------------------

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

    private static <T> void finish(CompletableFuture<T> future, int rc, T value) {
        if (rc == Code.OK) {
            future.complete(value);
        } else {
            future.completeExceptionally(BKException.create(rc));
        }
    }

    // -- the last confirmed entry -------------------------------------------------------------------------------

    @Check(perDigest = true)
    void readLastConfirmed(Setting s) throws Exception {
        LedgerHandle writer = s.create();
        add(writer, 10);
        try (LedgerHandle reader = s.openNoRecovery(writer.getId())) {
            // entry 9 carries 8 as the last confirmed one
            equal(8, reader.readLastConfirmed(), "read last confirmed");
            equal(8, reader.tryReadLastConfirmed(), "try read last confirmed");
            verify(reader.readEntries(0, 8), 0, 8);
            add(writer, 1);
            equal(9, reader.readLastConfirmed(), "read last confirmed after one more");
            equal(9, reader.getLastAddConfirmed(), "last add confirmed");
        }
        writer.close();
    }

    @Check
    void lastConfirmedCallbacks(Setting s) throws Exception {
        LedgerHandle writer = s.create();
        add(writer, 4);
        try (LedgerHandle reader = s.openNoRecovery(writer.getId())) {
            CompletableFuture<Long> full = new CompletableFuture<>();
            reader.asyncReadLastConfirmed((rc, lac, ctx) -> finish(full, rc, lac), null);
            equal(2L, await(full), "last confirmed");
            CompletableFuture<Long> quick = new CompletableFuture<>();
            reader.asyncTryReadLastConfirmed((rc, lac, ctx) -> finish(quick, rc, lac), null);
            equal(2L, await(quick), "last confirmed, tried");
            CompletableFuture<Long> explicit = new CompletableFuture<>();
            reader.asyncReadExplicitLastConfirmed((rc, lac, ctx) -> finish(explicit, rc, lac), null);
            equal(2L, await(explicit), "explicit last confirmed, of a writer that publishes none");
        }
        writer.close();
    }

    @Check(perDigest = true)
    void explicitLastConfirmedOfAnIdleWriter(Setting s) throws Exception {
        LedgerHandle writer = s.explicitLacClient().createLedger(3, 3, 2, s.oldDigest(), KEY);
        add(writer, 3);
        try (LedgerHandle reader = s.openNoRecovery(writer.getId())) {
            eventually(() -> reader.readExplicitLastConfirmed() == 2, "the last entry never became confirmed");
            add(writer, 2);
            eventually(() -> reader.readExplicitLastConfirmed() == 4, "nor after two more");
            verify(reader.readEntries(0, 4), 0, 4);
        }
        writer.close();
    }

    @Check
    void lastConfirmedOfAClosedLedger(Setting s) throws Exception {
        LedgerHandle writer = s.create();
        add(writer, 6);
        writer.close();
        try (LedgerHandle reader = s.openNoRecovery(writer.getId())) {
            equal(5, reader.getLastAddConfirmed(), "last add confirmed");
            equal(5, reader.readLastConfirmed(), "read last confirmed");
            equal(5, reader.readExplicitLastConfirmed(), "explicit last confirmed");
        }
    }

    @Check(wires = "v3", perDigest = true)
    void longPollGetsTheNextEntry(Setting s) throws Exception {
        LedgerHandle writer = s.create();
        add(writer, 3);
        try (LedgerHandle reader = s.openNoRecovery(writer.getId())) {
            for (int wanted = 0; wanted < 2; wanted++) {
                try (LastConfirmedAndEntry got = await(
                        reader.readLastAddConfirmedAndEntryAsync(wanted, 1000, false))) {
                    equal(1, got.getLastAddConfirmed(), "last add confirmed");
                    equal(wanted, got.getEntry().getEntryId(), "entry that came along");
                    that(Arrays.equals(payload(wanted), got.getEntry().getEntryBytes()), "other bytes");
                }
            }
            CompletableFuture<LastConfirmedAndEntry> waiting = reader.readLastAddConfirmedAndEntryAsync(2, 4000, true);
            add(writer, 1);
            try (LastConfirmedAndEntry got = await(waiting)) {
                equal(2, got.getLastAddConfirmed(), "last add confirmed after the wait");
                that(got.hasEntry(), "no entry came along");
                equal(2, got.getEntry().getEntryId(), "entry that came after the wait");
            }
        }
        writer.close();
    }

    @Check(wires = "v3")
    void longPollByCallback(Setting s) throws Exception {
        LedgerHandle writer = s.create();
        add(writer, 4);
        try (LedgerHandle reader = s.openNoRecovery(writer.getId())) {
            CompletableFuture<LedgerEntry> got = new CompletableFuture<>();
            reader.asyncReadLastConfirmedAndEntry(1, 1000, false,
                    (rc, lac, entry, ctx) -> finish(got, lac == 2 ? rc : Code.UnexpectedConditionException, entry), null);
            equal(1, await(got).getEntryId(), "entry that came along");
        }
        writer.close();
    }

    @Check(wires = "v3")
    void longPollEndsWithoutAnEntry(Setting s) throws Exception {
        LedgerHandle writer = s.create();
        add(writer, 2);
        try (LedgerHandle reader = s.openNoRecovery(writer.getId())) {
            equal(0, reader.readLastConfirmed(), "last confirmed");
            try (LastConfirmedAndEntry got = await(reader.readLastAddConfirmedAndEntryAsync(1, 300, false))) {
                equal(0, got.getLastAddConfirmed(), "last add confirmed");
                that(!got.hasEntry(), "an entry came although none was confirmed");
            }
        }
        writer.close();
    }

    @Check(wires = "v3")
    void longPollOnStripedLedger(Setting s) throws Exception {
        LedgerHandle writer = s.create(3, 2, 2);
        // Bookies that have never seen the ledger say so instead of waiting.
        add(writer, 1);
        try (LedgerHandle reader = s.openNoRecovery(writer.getId())) {
            for (int next = 0; next < 6; next++) {
                CompletableFuture<LastConfirmedAndEntry> poll =
                        reader.readLastAddConfirmedAndEntryAsync(next, 4000, true);
                add(writer, 1);
                try (LastConfirmedAndEntry got = await(poll)) {
                    equal(next, got.getLastAddConfirmed(), "last add confirmed");
                }
                verify(reader.readEntries(next, next), next, next);
            }
        }
        writer.close();
    }

    @Check(wires = "v3")
    void longPollWakesForAnExplicitLastConfirmed(Setting s) throws Exception {
        LedgerHandle writer = s.explicitLacClient().createLedger(3, 3, 2, s.oldDigest(), KEY);
        add(writer, 1);
        try (LedgerHandle reader = s.openNoRecovery(writer.getId())) {
            eventually(() -> {
                try (LastConfirmedAndEntry got = await(reader.readLastAddConfirmedAndEntryAsync(0, 1000, false))) {
                    return got.getLastAddConfirmed() == 0;
                }
            }, "the only entry never became confirmed");
        }
        writer.close();
    }

    // -- fencing, recovery, close ---------------------------------------------------------------------------------

    @Check(perDigest = true)
    void recoveryFencesTheWriter(Setting s) throws Exception {
        LedgerHandle writer = s.create();
        add(writer, 10);
        try (LedgerHandle reader = s.open(writer.getId())) {
            equal(9, reader.getLastAddConfirmed(), "last entry after recovery");
            equal(totalLength(10), reader.getLength(), "length after recovery");
            verify(reader.readEntries(0, 9), 0, 9);
        }
        fails(() -> writer.addEntry(payload(10)), Code.LedgerFencedException, Code.LedgerClosedException);
        that(s.bk().isClosed(writer.getId()), "the ledger is not closed");
    }

    @Check
    void recoveryOfAnAbandonedWriterKeepsWhatWasAcknowledged(Setting s) throws Exception {
        // Nothing but the end of its process would be more abrupt than a client that is closed.
        BookKeeper own = BookKeeper.forConfig(Setting.configuration(s.uri, s.v2)).build();
        LedgerHandle writer = own.createLedger(3, 3, 2, s.oldDigest(), KEY);
        add(writer, 25);
        own.close();
        try (LedgerHandle reader = s.open(writer.getId())) {
            equal(24, reader.getLastAddConfirmed(), "last entry after recovery");
            verify(reader.readEntries(0, 24), 0, 24);
        }
    }

    @Check
    void recoveryOfStripedLedgers(Setting s) throws Exception {
        int[][] shapes = {{3, 2, 2}, {3, 2, 1}, {2, 2, 2}, {1, 1, 1}};
        for (int[] shape : shapes) {
            LedgerHandle writer = s.create(shape[0], shape[1], shape[2]);
            add(writer, 11);
            try (LedgerHandle reader = s.open(writer.getId())) {
                equal(10, reader.getLastAddConfirmed(), "last entry after recovery");
                verify(reader.readEntries(0, 10), 0, 10);
            }
        }
    }

    @Check
    void recoveryOfAnEmptyLedger(Setting s) throws Exception {
        LedgerHandle writer = s.create();
        try (LedgerHandle reader = s.open(writer.getId())) {
            equal(-1, reader.getLastAddConfirmed(), "last entry after recovery");
            equal(0, reader.getLength(), "length");
        }
        fails(() -> writer.addEntry(payload(0)), Code.LedgerFencedException, Code.LedgerClosedException);
    }

    @Check
    void twoRecoveriesAtOnceAgree(Setting s) throws Exception {
        LedgerHandle writer = s.create();
        add(writer, 30);
        BookKeeper other = s.ownClient(conf -> { });
        CompletableFuture<LedgerHandle> first = new CompletableFuture<>();
        CompletableFuture<LedgerHandle> second = new CompletableFuture<>();
        s.bk().asyncOpenLedger(writer.getId(), s.oldDigest(), KEY, (rc, lh, ctx) -> finish(first, rc, lh), null);
        other.asyncOpenLedger(writer.getId(), s.oldDigest(), KEY, (rc, lh, ctx) -> finish(second, rc, lh), null);
        equal(await(first).getLastAddConfirmed(), await(second).getLastAddConfirmed(), "last entries");
        equal(29, await(first).getLastAddConfirmed(), "last entry");
        verify(await(second).readEntries(0, 29), 0, 29);
    }

    @Check
    void openWithoutRecoveryLeavesTheWriterAlone(Setting s) throws Exception {
        LedgerHandle writer = s.create();
        add(writer, 5);
        try (LedgerHandle reader = s.openNoRecovery(writer.getId())) {
            that(reader.getLastAddConfirmed() >= 3, "last add confirmed");
            that(!s.bk().isClosed(writer.getId()), "the ledger is closed");
        }
        add(writer, 5);
        writer.close();
        that(s.bk().isClosed(writer.getId()), "the ledger is not closed");
    }

    @Check
    void addAfterCloseFails(Setting s) throws Exception {
        LedgerHandle writer = s.create();
        add(writer, 2);
        writer.close();
        fails(() -> writer.addEntry(payload(2)), Code.LedgerClosedException);
        writer.close();
        equal(1, writer.getLastAddConfirmed(), "last add confirmed");
    }

    @Check
    void closeAfterRecoveryBySomebodyElse(Setting s) throws Exception {
        LedgerHandle writer = s.create();
        add(writer, 4);
        s.open(writer.getId()).close();
        // The writer finds its ledger closed at the very entry where it would have closed it itself.
        writer.close();
        try (LedgerHandle reader = s.open(writer.getId())) {
            equal(3, reader.getLastAddConfirmed(), "last add confirmed");
        }
    }

    @Check
    void emptyLedger(Setting s) throws Exception {
        LedgerHandle writer = s.create();
        writer.close();
        try (LedgerHandle reader = s.open(writer.getId())) {
            equal(-1, reader.getLastAddConfirmed(), "last add confirmed");
            equal(0, reader.getLength(), "length");
            fails(() -> reader.readEntries(0, 0), Code.ReadException);
            fails(() -> reader.readLastEntry(), Code.NoSuchEntryException);
        }
    }

    @Check
    void deleteLedger(Setting s) throws Exception {
        LedgerHandle writer = s.create();
        add(writer, 3);
        writer.close();
        s.bk().deleteLedger(writer.getId());
        fails(() -> s.open(writer.getId()), Code.NoSuchLedgerExistsOnMetadataServerException,
              Code.NoSuchLedgerExistsException);
    }

    @Check
    void deleteLedgerThatIsOpen(Setting s) throws Exception {
        LedgerHandle writer = s.create();
        add(writer, 3);
        s.bk().deleteLedger(writer.getId());
        fails(() -> s.openNoRecovery(writer.getId()), Code.NoSuchLedgerExistsOnMetadataServerException,
              Code.NoSuchLedgerExistsException);
    }

    @Check
    void openOfAnUnknownLedger(Setting s) throws Exception {
        fails(() -> s.open(1L << 40), Code.NoSuchLedgerExistsOnMetadataServerException,
              Code.NoSuchLedgerExistsException);
    }

    @Check(perDigest = true)
    void wrongPassword(Setting s) throws Exception {
        byte[] wrong = "not the password".getBytes(StandardCharsets.UTF_8);
        LedgerHandle writer = s.create();
        add(writer, 3);
        fails(() -> s.bk().openLedgerNoRecovery(writer.getId(), s.oldDigest(), wrong), Code.UnauthorizedAccessException);
        fails(() -> s.bk().openLedger(writer.getId(), s.oldDigest(), wrong), Code.UnauthorizedAccessException);
        add(writer, 3);
        writer.close();
        try (LedgerHandle reader = s.open(writer.getId())) {
            verify(reader.readEntries(0, 5), 0, 5);
        }
    }

    // -- explicit entry ids ---------------------------------------------------------------------------------------

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

    // -- metadata ---------------------------------------------------------------------------------------------------

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
