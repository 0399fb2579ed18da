package interop;

import static interop.Setting.add;
import static interop.Setting.await;
import static interop.Setting.equal;
import static interop.Setting.payload;
import static interop.Setting.that;
import static interop.Setting.verify;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Collectors;
import org.apache.bookkeeper.client.BKException.Code;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.BookieInfoReader.BookieInfo;
import org.apache.bookkeeper.client.LedgerChecker;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerFragment;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.discover.BookieServiceInfo;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.net.BookieSocketAddress;
import org.apache.bookkeeper.util.AvailabilityOfEntriesOfLedger;

/** What operators' tools are built on: BookKeeperAdmin, and the checker of the auditor. */
final class AdminChecks {

    private static BookKeeperAdmin admin(Setting s) throws Exception {
        // Not closed: that would close the client, which is shared.
        return new BookKeeperAdmin(s.bk());
    }

    private static Set<String> names(Collection<BookieId> ids) {
        return ids.stream().map(BookieId::getId).collect(Collectors.toSet());
    }

    private static Set<String> wanted(Setting s) {
        Set<String> ids = new HashSet<>();
        s.args.get("bookies").forEach(id -> ids.add(id.asText()));
        return ids;
    }

    @Check
    void availableBookies(Setting s) throws Exception {
        equal(wanted(s), names(admin(s).getAvailableBookies()), "bookies");
        equal(Set.of(), names(admin(s).getReadOnlyBookies()), "read-only bookies");
    }

    @Check
    void allBookiesByTheirCookies(Setting s) throws Exception {
        that(names(admin(s).getAllBookies()).containsAll(wanted(s)), "a cookie is missing");
    }

    @Check
    void serviceInfoOfEachBookie(Setting s) throws Exception {
        for (BookieId id : admin(s).getAvailableBookies()) {
            BookieServiceInfo info = admin(s).getBookieServiceInfo(id);
            BookieServiceInfo.Endpoint rpc = info.getEndpoints().stream()
                    .filter(endpoint -> endpoint.getProtocol().equals("bookie-rpc")).findFirst().orElseThrow();
            equal("127.0.0.1", rpc.getHost(), "host");
            that(rpc.getPort() > 0, "port");
            BookieSocketAddress resolved = s.bk().getBookieAddressResolver().resolve(id);
            equal(rpc.getPort(), resolved.getPort(), "resolved port");
        }
    }

    @Check
    void diskSpaceOfEachBookie(Setting s) throws Exception {
        Map<BookieId, BookieInfo> infos = s.bk().getBookieInfo();
        equal(wanted(s), names(infos.keySet()), "bookies");
        for (BookieInfo info : infos.values()) {
            that(info.getTotalDiskSpace() > 0, "total space");
            that(info.getFreeDiskSpace() > 0 && info.getFreeDiskSpace() <= info.getTotalDiskSpace(), "free space");
        }
    }

    @Check(wires = "v3")
    void listOfEntriesOnEachBookie(Setting s) throws Exception {
        LedgerHandle writer = s.create(3, 2, 2);
        add(writer, 10);
        writer.close();
        List<? extends BookieId> ensemble = writer.getLedgerMetadata().getEnsembleAt(0);
        for (int i = 0; i < 3; i++) {
            AvailabilityOfEntriesOfLedger has =
                    await(admin(s).asyncGetListOfEntriesOfLedger(ensemble.get(i), writer.getId()));
            for (int entry = 0; entry < 10; entry++) {
                // entry e is on the members e and e + 1
                boolean there = entry % 3 == i || (entry + 1) % 3 == i;
                equal(there, has.isEntryAvailable(entry), "entry " + entry + " on member " + i);
            }
        }
    }

    @Check(wires = "v3")
    void listOfEntriesOfAnUnknownLedger(Setting s) throws Exception {
        BookieId any = admin(s).getAvailableBookies().iterator().next();
        Setting.fails(() -> await(admin(s).asyncGetListOfEntriesOfLedger(any, 1L << 41)),
                      Code.NoSuchLedgerExistsException);
    }

    @Check(perDigest = true)
    void openWithoutKnowingThePassword(Setting s) throws Exception {
        LedgerHandle writer = s.create();
        add(writer, 5);
        try (LedgerHandle peek = admin(s).openLedgerNoRecovery(writer.getId())) {
            that(peek.getLastAddConfirmed() >= 3, "last add confirmed");
        }
        try (LedgerHandle recovered = admin(s).openLedger(writer.getId())) {
            verify(recovered.readEntries(0, 4), 0, 4);
        }
    }

    @Check
    void readEntriesOneByOne(Setting s) throws Exception {
        LedgerHandle writer = s.create();
        add(writer, 12);
        writer.close();
        long next = 0;
        for (LedgerEntry entry : admin(s).readEntries(writer.getId(), 0, 11)) {
            equal(next, entry.getEntryId(), "entry id");
            that(Arrays.equals(payload(next), entry.getEntry()), "other bytes");
            next++;
        }
        equal(12, next, "entries");
        next = 4;
        for (LedgerEntry entry : admin(s).readEntries(writer.getId(), 4, -1)) {
            equal(next++, entry.getEntryId(), "entry id");
        }
        equal(12, next, "entries up to the end");
    }

    @Check
    void listLedgers(Setting s) throws Exception {
        LedgerHandle writer = s.create();
        writer.close();
        List<Long> all = new ArrayList<>();
        admin(s).listLedgers().forEach(all::add);
        that(all.contains(writer.getId()), "ledger " + writer.getId() + " is not listed");
    }

    @Check
    void ledgersThatContainABookie(Setting s) throws Exception {
        LedgerHandle writer = s.create();
        add(writer, 1);
        writer.close();
        BookieId member = writer.getLedgerMetadata().getEnsembleAt(0).get(0);
        that(admin(s).getLedgersContainBookies(Set.of(member)).containsKey(writer.getId()), "not found");
        that(BookKeeperAdmin.areEntriesOfLedgerStoredInTheBookie(writer.getId(), member, s.bk().getLedgerManager()),
             "said not to be stored there");
    }

    @Check
    void theAuditorsCheckerFindsNothingMissing(Setting s) throws Exception {
        LedgerHandle writer = s.create(3, 2, 2);
        add(writer, 9);
        writer.close();
        LedgerChecker checker = new LedgerChecker(s.bk());
        CompletableFuture<Set<LedgerFragment>> found = new CompletableFuture<>();
        try (LedgerHandle reader = s.openNoRecovery(writer.getId())) {
            checker.checkLedger(reader, (rc, fragments) -> {
                if (rc == Code.OK) {
                    found.complete(fragments);
                } else {
                    found.completeExceptionally(org.apache.bookkeeper.client.BKException.create(rc));
                }
            }, 100L);
            equal(Set.of(), await(found), "bad fragments");
        }
    }
}
