package interop;

import static interop.Setting.KEY;
import static interop.Setting.add;
import static interop.Setting.await;
import static interop.Setting.equal;
import static interop.Setting.fails;
import static interop.Setting.that;
import static interop.Setting.verify;

import org.apache.bookkeeper.client.BKException.Code;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.ReadHandle;

/**
 * Batch reads. They are one packet on v2 where every bookie has every entry; of other ledgers the client makes single
 * reads. On v3 it does neither where every bookie has every entry: it throws, or never answers (unconfirmed), unless
 * batch reads are switched off. Only for clients that know them (4.17 and newer).
 */
final class BatchChecks {

    private static LedgerHandle closedLedger(Setting s, int count) throws Exception {
        LedgerHandle writer = s.create();
        add(writer, count);
        writer.close();
        return writer;
    }

    private static ReadHandle reader(Setting s, long ledger) throws Exception {
        return await(s.bk().newOpenLedgerOp().withLedgerId(ledger).withDigestType(s.digest).withPassword(KEY)
                .withRecovery(false).execute());
    }

    @Check(wires = "v2", perDigest = true)
    void byCount(Setting s) throws Exception {
        LedgerHandle writer = closedLedger(s, 60);
        try (LedgerHandle reader = s.open(writer.getId())) {
            verify(reader.batchReadEntries(0, 60, 1 << 20), 0, 59);
            verify(reader.batchReadEntries(11, 7, 1 << 20), 11, 17);
            verify(reader.batchReadEntries(59, 1, 1 << 20), 59, 59);
            verify(reader.batchReadEntries(50, 100, 1 << 20), 50, 59);
        }
    }

    @Check(wires = "v2")
    void bySize(Setting s) throws Exception {
        LedgerHandle writer = closedLedger(s, 60);
        try (LedgerHandle reader = s.open(writer.getId())) {
            int total = 0;
            for (long next = 0; next <= 59; total++) {
                LedgerEntries some = await(reader.batchReadAsync(next, 100, 1000));
                long last = next - 1;
                long bytes = 0;
                for (org.apache.bookkeeper.client.api.LedgerEntry entry : some) {
                    last = entry.getEntryId();
                    bytes += entry.getEntryBytes().length;
                }
                that(last >= next, "no progress at " + next);
                that(bytes <= 1000, bytes + " bytes came");
                verify(some, next, last); // and closes them
                next = last + 1;
            }
            that(total > 5, "the limit of 1000 bytes had no effect: " + total + " reads");
            // The first entry comes whatever its size.
            verify(await(reader.batchReadAsync(30, 100, 1)), 30, 30);
        }
    }

    /** Apache's testBatchReadWithV2Protocol: exactly as many entries come as fit, of entries added one by one. */
    @Check(wires = "v2")
    void asManyAsFit(Setting s) throws Exception {
        byte[] data = "foobar".getBytes();
        LedgerHandle writer = s.bk().createLedger(2, 2, 2, BookKeeper.DigestType.CRC32, KEY);
        for (int i = 0; i < 100; i++) {
            writer.addEntry(data);
        }
        writer.close();
        long entry = 8 + 8 + 8 + 8 + 8 + data.length;
        long header = 24 + 8 + 4;
        try (LedgerHandle reader = s.bk().openLedger(writer.getId(), BookKeeper.DigestType.CRC32, KEY)) {
            for (int wanted : new int[] {1, 2, 5, 17, 100}) {
                long size = header + wanted * (entry + 4);
                equal(wanted, count(reader.batchReadEntries(0, 0, size)), "entries that fit exactly");
                equal(wanted, count(reader.batchReadEntries(0, 100, size)), "entries that fit exactly");
                equal(Math.max(1, wanted - 1), count(reader.batchReadEntries(0, 0, size - 1)), "one byte less");
            }
            equal(1, count(reader.batchReadEntries(0, 20, header)), "the first entry");
        }
    }

    private static int count(java.util.Enumeration<org.apache.bookkeeper.client.LedgerEntry> entries) {
        int count = 0;
        for (; entries.hasMoreElements(); count++) {
            entries.nextElement().getEntry();
        }
        return count;
    }

    @Check
    void beyondTheEnd(Setting s) throws Exception {
        LedgerHandle writer = closedLedger(s, 5);
        try (LedgerHandle reader = s.open(writer.getId())) {
            fails(() -> reader.batchReadEntries(5, 1, 1000), Code.IncorrectParameterException);
            fails(() -> await(reader.batchReadAsync(5, 1, 1000)), Code.ReadException);
            fails(() -> reader.batchReadEntries(-1, 1, 1000), Code.IncorrectParameterException);
        }
    }

    @Check
    void ofAStripedLedger(Setting s) throws Exception {
        LedgerHandle writer = s.create(3, 2, 2);
        add(writer, 20);
        writer.close();
        try (LedgerHandle reader = s.open(writer.getId())) {
            verify(reader.batchReadEntries(4, 10, 1 << 20), 4, 13);
        }
    }

    @Check
    void switchedOff(Setting s) throws Exception {
        LedgerHandle writer = closedLedger(s, 25);
        BookKeeper own = s.ownClient(conf -> conf.setBatchReadEnabled(false));
        try (LedgerHandle reader = own.openLedger(writer.getId(), s.oldDigest(), KEY)) {
            verify(reader.batchReadEntries(2, 20, 1 << 20), 2, 21);
            verify(reader.batchReadUnconfirmedEntries(5, 20, 1 << 20), 5, 24);
        }
    }

    @Check(wires = "v2", perDigest = true)
    void unconfirmed(Setting s) throws Exception {
        LedgerHandle writer = s.create();
        add(writer, 10);
        try (LedgerHandle reader = s.openNoRecovery(writer.getId())) {
            verify(reader.batchReadUnconfirmedEntries(0, 10, 1 << 20), 0, 9);
        }
        writer.close();
    }

    @Check(wires = "v2")
    void throughReadHandle(Setting s) throws Exception {
        LedgerHandle writer = closedLedger(s, 30);
        try (ReadHandle reader = reader(s, writer.getId())) {
            verify(reader.batchRead(0, 30, 1 << 20), 0, 29);
            verify(await(reader.batchReadAsync(3, 4, 1 << 20)), 3, 6);
            verify(await(reader.batchReadUnconfirmedAsync(25, 5, 1 << 20)), 25, 29);
        }
    }

    @Check(wires = "v2")
    void ofLargeEntries(Setting s) throws Exception {
        LedgerHandle writer = s.create();
        byte[] large = new byte[1_500_000];
        for (int i = 0; i < 5; i++) {
            writer.addEntry(large);
        }
        writer.close();
        try (LedgerHandle reader = s.open(writer.getId())) {
            for (long next = 0; next < 5;) {
                int count = 0;
                try (LedgerEntries some = await(reader.batchReadAsync(next, 5, 0))) {
                    for (org.apache.bookkeeper.client.api.LedgerEntry entry : some) {
                        equal(next + count, entry.getEntryId(), "entry id");
                        equal(large.length, entry.getEntryBytes().length, "size");
                        count++;
                    }
                }
                that(count > 0 && count <= 3, count + " entries in one frame");
                next += count;
            }
        }
    }
}
