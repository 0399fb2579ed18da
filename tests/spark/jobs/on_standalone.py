"""A driver that runs a pipeline and the jobs: `python -m tests.spark.jobs.on_standalone MASTER URI FOLDER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from examples import spark_pipeline

from buckram import jobs
from buckram.spark import local_session
from buckram.spark.session import QUIET


def main(master: str, uri: str, folder: Path) -> None:
    java = f"-Dlog4j2.configurationFile={QUIET} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    settings = {
        "spark.master": master, "spark.driver.extraJavaOptions": java, "spark.executor.extraJavaOptions": java,
        "spark.executor.memory": "512m", "spark.python.unix.domain.socket.enabled": "false",
    }  # fmt: skip
    session = local_session("standalone", settings=settings)
    spark_pipeline.run(session, uri, folder, at_once=200)
    total = spark_pipeline.total(session, uri)
    compacted = jobs.compact(session, uri)
    audit = jobs.scrub(session, uri)
    print(json.dumps({
        "total": total, "same": spark_pipeline.total(session, uri) == total, "made": compacted.made,
        "segments": compacted.segments, "problems": compacted.problems,
        "bad": [str(one) for one in audit.bad + audit.unknown],
        "replicas": audit.replicas, "orphans": [one.reason for one in jobs.orphans(session, uri).orphans],
    }))  # fmt: skip
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
