package interop;

import static interop.Setting.await;
import static interop.Setting.equal;

/** Small things that only newer clients have; batch reads are in BatchChecks. */
final class RecentChecks {

    @Check
    void metadataServiceIsAvailable(Setting s) throws Exception {
        equal(true, await(s.bk().isDriverMetadataServiceAvailable()), "available");
    }
}
