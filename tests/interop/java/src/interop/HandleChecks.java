package interop;

import static interop.Setting.KEY;
import static interop.Setting.await;
import static interop.Setting.equal;
import static interop.Setting.eventually;
import static interop.Setting.fails;
import static interop.Setting.payload;
import static interop.Setting.that;
import static interop.Setting.totalLength;
import static interop.Setting.verify;

import io.netty.buffer.Unpooled;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.client.api.BKException.Code;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.CreateBuilder;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.ListLedgersResult;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteAdvHandle;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.client.api.WriteHandle;

/** The newer client API: WriteHandle, WriteAdvHandle and ReadHandle from builders. */
final class HandleChecks {

    private static CreateBuilder builder(BookKeeper bk, Setting s) {
        return bk.newCreateLedgerOp().withEnsembleSize(3).withWriteQuorumSize(3).withAckQuorumSize(2)
                .withDigestType(s.digest).withPassword(KEY);
    }

    private static WriteHandle create(Setting s) throws Exception {
        return builder(s.bk(), s).execute().get();
    }

    private static ReadHandle open(Setting s, long ledger, boolean recover) throws Exception {
        return await(s.bk().newOpenLedgerOp().withLedgerId(ledger).withDigestType(s.digest).withPassword(KEY)
                .withRecovery(recover).execute());
    }

    private static void append(WriteHandle writer, int count) throws Exception {
        for (int i = 0; i < count; i++) {
            long next = writer.getLastAddPushed() + 1;
            equal(next, writer.append(payload(next)), "entry id");
        }
    }

    @Check(perDigest = true)
    void appendAndReadBack(Setting s) throws Exception {
        long ledger;
        try (WriteHandle writer = create(s)) {
            ledger = writer.getId();
            append(writer, 20);
            equal(totalLength(20), writer.getLength(), "length of the writer");
            verify(writer.read(0, 19), 0, 19);
        }
        try (ReadHandle reader = open(s, ledger, false)) {
            that(reader.isClosed(), "not closed");
            equal(19, reader.getLastAddConfirmed(), "last add confirmed");
            equal(totalLength(20), reader.getLength(), "length");
            verify(reader.read(0, 19), 0, 19);
            verify(reader.read(3, 11), 3, 11);
        }
    }

    @Check
    void appendInAllForms(Setting s) throws Exception {
        try (WriteHandle writer = create(s)) {
            writer.append(payload(0));
            writer.append(ByteBuffer.wrap(payload(1)));
            writer.append(Unpooled.wrappedBuffer(payload(2)));
            byte[] padded = new byte[payload(3).length + 20];
            System.arraycopy(payload(3), 0, padded, 7, payload(3).length);
            writer.append(padded, 7, payload(3).length);
            verify(writer.read(0, 3), 0, 3);
        }
    }

    @Check
    void appendAsync(Setting s) throws Exception {
        int count = 1000;
        WriteHandle writer = create(s);
        List<CompletableFuture<Long>> adds = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            adds.add(writer.appendAsync(payload(i)));
        }
        for (int i = 0; i < count; i++) {
            equal((long) i, await(adds.get(i)), "entry id");
        }
        equal(count - 1, writer.getLastAddConfirmed(), "last add confirmed");
        await(writer.closeAsync());
        try (ReadHandle reader = open(s, writer.getId(), true)) {
            verify(await(reader.readAsync(0, count - 1)), 0, count - 1);
        }
    }

    @Check
    void readBeyondTheEnd(Setting s) throws Exception {
        WriteHandle writer = create(s);
        append(writer, 4);
        writer.close();
        try (ReadHandle reader = open(s, writer.getId(), false)) {
            fails(() -> reader.read(0, 4), Code.ReadException);
            fails(() -> reader.read(2, 1), Code.IncorrectParameterException);
            fails(() -> await(reader.readUnconfirmedAsync(3, 4)), Code.NoSuchEntryException);
        }
    }

    @Check(perDigest = true)
    void readUnconfirmed(Setting s) throws Exception {
        WriteHandle writer = create(s);
        append(writer, 8);
        try (ReadHandle reader = open(s, writer.getId(), false)) {
            verify(reader.readUnconfirmed(0, 7), 0, 7);
        }
        writer.close();
    }

    @Check
    void lastAddConfirmedOfALiveLedger(Setting s) throws Exception {
        WriteHandle writer = create(s);
        append(writer, 5);
        try (ReadHandle reader = open(s, writer.getId(), false)) {
            equal(3, reader.readLastAddConfirmed(), "last add confirmed");
            equal(3, reader.tryReadLastAddConfirmed(), "last add confirmed, tried");
            append(writer, 2);
            equal(5L, await(reader.readLastAddConfirmedAsync()), "last add confirmed, later");
            verify(reader.read(0, 5), 0, 5);
            that(!reader.isClosed(), "closed");
        }
        writer.close();
    }

    @Check(wires = "v3")
    void tailWithLongPoll(Setting s) throws Exception {
        WriteHandle writer = builder(s.explicitLacClient(), s).execute().get();
        int count = 30;
        append(writer, 1); // bookies that have never seen the ledger say so instead of waiting
        try (ReadHandle reader = open(s, writer.getId(), false)) {
            CompletableFuture<Void> writing = CompletableFuture.runAsync(() -> {
                try {
                    append(writer, count - 1);
                } catch (Exception error) {
                    throw new IllegalStateException(error);
                }
            });
            for (long next = 0; next < count;) {
                long from = next;
                try (LastConfirmedAndEntry got = reader.readLastAddConfirmedAndEntry(next, 2000, false)) {
                    if (got.hasEntry()) {
                        equal(next, got.getEntry().getEntryId(), "entry that came along");
                        that(Arrays.equals(payload(next), got.getEntry().getEntryBytes()), "other bytes");
                        next++;
                    }
                    if (got.getLastAddConfirmed() >= next) {
                        verify(reader.read(next, got.getLastAddConfirmed()), next, got.getLastAddConfirmed());
                        next = got.getLastAddConfirmed() + 1;
                    }
                }
                that(next >= from, "went back");
            }
            await(writing);
        }
        writer.close();
    }

    @Check(perDigest = true)
    void recoveryFencesTheWriter(Setting s) throws Exception {
        WriteHandle writer = create(s);
        append(writer, 7);
        try (ReadHandle reader = open(s, writer.getId(), true)) {
            equal(6, reader.getLastAddConfirmed(), "last entry");
            verify(reader.read(0, 6), 0, 6);
            that(reader.isClosed(), "not closed");
        }
        // A copy that the quorum did not wait for may have come after the fence. The client then looks for a bookie in
        // the place of the one that refused it, before it sends the next entry, and there is no other.
        fails(() -> writer.append(payload(7)), Code.LedgerFencedException, Code.LedgerClosedException,
                Code.NotEnoughBookiesException);
        fails(() -> writer.append(payload(7)), Code.LedgerFencedException, Code.LedgerClosedException);
    }

    @Check
    void aLongPollingReaderSeesTheEnd(Setting s) throws Exception {
        WriteHandle writer = create(s);
        append(writer, 3);
        try (ReadHandle reader = open(s, writer.getId(), false)) {
            writer.close();
            eventually(() -> reader.readLastAddConfirmed() == 2, "the last entry never showed");
            eventually(reader::isClosed, "the close never showed");
        }
    }

    @Check(wires = "v3", perDigest = true)
    void deferredSyncAndForce(Setting s) throws Exception {
        WriteHandle writer = await(builder(s.bk(), s).withWriteFlags(WriteFlag.DEFERRED_SYNC).execute());
        append(writer, 10);
        equal(-1, writer.getLastAddConfirmed(), "last add confirmed before the force");
        equal(9, writer.getLastAddPushed(), "last add pushed");
        await(writer.force());
        equal(9, writer.getLastAddConfirmed(), "last add confirmed after the force");
        append(writer, 5);
        await(writer.force());
        equal(14, writer.getLastAddConfirmed(), "last add confirmed after the second force");
        writer.close();
        try (ReadHandle reader = open(s, writer.getId(), false)) {
            equal(14, reader.getLastAddConfirmed(), "last entry");
            verify(reader.read(0, 14), 0, 14);
        }
    }

    @Check(wires = "v3")
    void deferredSyncIsRecovered(Setting s) throws Exception {
        WriteHandle writer = await(builder(s.bk(), s).withWriteFlags(WriteFlag.DEFERRED_SYNC).execute());
        append(writer, 6);
        await(writer.force());
        append(writer, 2);
        try (ReadHandle reader = open(s, writer.getId(), true)) {
            that(reader.getLastAddConfirmed() >= 5, "forced entries are gone");
            verify(reader.read(0, reader.getLastAddConfirmed()), 0, reader.getLastAddConfirmed());
        }
    }

    @Check(wires = "v3")
    void forceOfAnOrdinaryLedger(Setting s) throws Exception {
        try (WriteHandle writer = create(s)) {
            await(writer.force());
            append(writer, 3);
            await(writer.force());
            equal(2, writer.getLastAddConfirmed(), "last add confirmed");
        }
    }

    @Check(perDigest = true)
    void explicitIds(Setting s) throws Exception {
        WriteAdvHandle writer = await(builder(s.bk(), s).makeAdv().execute());
        List<CompletableFuture<Long>> adds = new ArrayList<>();
        for (int i = 19; i >= 0; i--) {
            adds.add(writer.writeAsync(i, payload(i)));
        }
        for (CompletableFuture<Long> add : adds) {
            await(add);
        }
        fails(() -> writer.write(3, payload(3)), Code.DuplicateEntryIdException);
        equal(20L, writer.write(20, ByteBuffer.wrap(payload(20))), "entry id");
        writer.close();
        try (ReadHandle reader = open(s, writer.getId(), false)) {
            for (int i = 0; i <= 20; i++) {
                verify(reader.read(i, i), i, i);
            }
        }
    }

    @Check
    void chosenLedgerId(Setting s) throws Exception {
        long wanted = Long.MAX_VALUE - (System.nanoTime() & 0xffffffffL) - (s.v2 ? 1L << 33 : 0);
        WriteAdvHandle writer = await(builder(s.bk(), s).makeAdv().withLedgerId(wanted).execute());
        equal(wanted, writer.getId(), "ledger id");
        equal(0, writer.write(0, payload(0)), "entry id");
        writer.close();
        fails(() -> await(builder(s.bk(), s).makeAdv().withLedgerId(wanted).execute()), Code.LedgerExistException);
        try (ReadHandle reader = open(s, wanted, true)) {
            verify(reader.read(0, 0), 0, 0);
        }
        await(s.bk().newDeleteLedgerOp().withLedgerId(wanted).execute());
        fails(() -> open(s, wanted, false), Code.NoSuchLedgerExistsOnMetadataServerException,
              Code.NoSuchLedgerExistsException);
    }

    @Check
    void deleteLedger(Setting s) throws Exception {
        WriteHandle writer = create(s);
        append(writer, 1);
        writer.close();
        await(s.bk().newDeleteLedgerOp().withLedgerId(writer.getId()).execute());
        fails(() -> open(s, writer.getId(), true), Code.NoSuchLedgerExistsOnMetadataServerException,
              Code.NoSuchLedgerExistsException);
    }

    @Check
    void listLedgers(Setting s) throws Exception {
        List<Long> made = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            try (WriteHandle writer = create(s)) {
                made.add(writer.getId());
            }
        }
        List<Long> listed = new ArrayList<>();
        try (ListLedgersResult result = await(s.bk().newListLedgersOp().execute())) {
            result.toIterable().forEach(listed::add);
        }
        that(listed.containsAll(made), "the listing lacks some of " + made);
        for (int i = 1; i < listed.size(); i++) {
            that(listed.get(i - 1) < listed.get(i), "the listing is not in order");
        }
    }

    @Check
    void customMetadataAndItsRecord(Setting s) throws Exception {
        WriteHandle writer = await(builder(s.bk(), s)
                .withCustomMetadata(Map.of("who", "java".getBytes(StandardCharsets.UTF_8))).execute());
        append(writer, 2);
        LedgerMetadata open = await(s.bk().getLedgerMetadata(writer.getId()));
        equal(LedgerMetadata.State.OPEN, open.getState(), "state");
        writer.close();
        LedgerMetadata closed = await(s.bk().getLedgerMetadata(writer.getId()));
        equal(writer.getId(), closed.getLedgerId(), "ledger id");
        equal(LedgerMetadata.State.CLOSED, closed.getState(), "state");
        equal(1, closed.getLastEntryId(), "last entry");
        equal(totalLength(2), closed.getLength(), "length");
        equal(3, closed.getEnsembleSize(), "ensemble size");
        equal(3, closed.getWriteQuorumSize(), "write quorum");
        equal(2, closed.getAckQuorumSize(), "ack quorum");
        equal(s.digest, closed.getDigestType(), "digest type");
        that(Arrays.equals(KEY, closed.getPassword()), "password");
        equal("java", new String(closed.getCustomMetadata().get("who"), StandardCharsets.UTF_8), "custom metadata");
        equal(3, closed.getEnsembleAt(0).size(), "members");
        equal(1, closed.getAllEnsembles().size(), "fragments");
    }

    @Check
    void wrongPassword(Setting s) throws Exception {
        WriteHandle writer = create(s);
        append(writer, 1);
        byte[] wrong = "wrong".getBytes(StandardCharsets.UTF_8);
        for (boolean recover : new boolean[] {false, true}) {
            fails(() -> await(s.bk().newOpenLedgerOp().withLedgerId(writer.getId()).withDigestType(s.digest)
                    .withPassword(wrong).withRecovery(recover).execute()), Code.UnauthorizedAccessException);
        }
        append(writer, 1);
        writer.close();
    }

    @Check
    void emptyPassword(Setting s) throws Exception {
        WriteHandle writer = await(builder(s.bk(), s).withPassword(new byte[0]).execute());
        append(writer, 3);
        try (ReadHandle reader = await(s.bk().newOpenLedgerOp().withLedgerId(writer.getId())
                .withDigestType(s.digest).withPassword(new byte[0]).withRecovery(true).execute())) {
            verify(reader.read(0, 2), 0, 2);
        }
    }

    @Check
    void emptyEntryAndEmptyLedger(Setting s) throws Exception {
        WriteHandle writer = create(s);
        equal(0, writer.append(new byte[0]), "entry id");
        writer.close();
        try (ReadHandle reader = open(s, writer.getId(), true)) {
            equal(0, reader.getLastAddConfirmed(), "last entry");
            equal(0, reader.getLength(), "length");
        }
        WriteHandle nothing = create(s);
        nothing.close();
        try (ReadHandle reader = open(s, nothing.getId(), true)) {
            equal(-1, reader.getLastAddConfirmed(), "last entry");
        }
    }
}
