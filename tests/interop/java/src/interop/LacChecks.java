package interop;

import static interop.Setting.KEY;
import static interop.Setting.add;
import static interop.Setting.await;
import static interop.Setting.equal;
import static interop.Setting.eventually;
import static interop.Setting.finish;
import static interop.Setting.payload;
import static interop.Setting.that;
import static interop.Setting.verify;

import java.util.Arrays;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BKException.Code;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;

/** The older client API: the last confirmed entry, piggybacked, explicit and waited for. */
final class LacChecks {

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
            explicitlyConfirmed(writer, reader, "the last entry never became confirmed");
            add(writer, 2);
            explicitlyConfirmed(writer, reader, "nor after two more");
            long last = writer.getLastAddPushed();
            verify(reader.readEntries(0, last), 0, last);
        }
        writer.close();
    }

    /**
     * Wait until a reader sees the idle writer's last entry as confirmed.
     *
     * <p>Apache's ExplicitLacFlushPolicyImpl reads the LAC once to send it and once more to remember what it sent. An
     * add that completes in between is remembered and never sent, until another entry follows: then add one.
     */
    private static void explicitlyConfirmed(LedgerHandle writer, LedgerHandle reader, String otherwise)
            throws Exception {
        for (int attempt = 0; attempt < 3; attempt++) {
            long last = writer.getLastAddPushed();
            long limit = System.nanoTime() + TimeUnit.SECONDS.toNanos(4);
            while (System.nanoTime() < limit) {
                if (reader.readExplicitLastConfirmed() == last) {
                    return;
                }
                Thread.sleep(10);
            }
            add(writer, 1);
        }
        that(false, otherwise);
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
}
