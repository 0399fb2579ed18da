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

import java.nio.charset.StandardCharsets;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.client.BKException.Code;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;

/** The older client API: fencing, recovery, close, delete, passwords. */
final class RecoveryChecks {

    @Check(perDigest = true)
    void recoveryFencesTheWriter(Setting s) throws Exception {
        LedgerHandle writer = s.create();
        add(writer, 10);
        try (LedgerHandle reader = s.open(writer.getId())) {
            equal(9, reader.getLastAddConfirmed(), "last entry after recovery");
            equal(totalLength(10), reader.getLength(), "length after recovery");
            verify(reader.readEntries(0, 9), 0, 9);
        }
        // Or NotEnoughBookies, where the fence came before a copy that the quorum did not wait for (HandleChecks).
        fails(() -> writer.addEntry(payload(10)), Code.LedgerFencedException, Code.LedgerClosedException,
                Code.NotEnoughBookiesException);
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
}
