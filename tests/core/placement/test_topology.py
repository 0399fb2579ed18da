import pytest

from buckram.core.placement.topology import (
    HOST_PROPERTY,
    LOCATION_PROPERTY,
    Location,
    RackMap,
    Topology,
    parse_lines,
    registered_topology,
)
from buckram.errors import InvalidArgument, MalformedRecord
from buckram.types import BookieAddress, BookieInfo


def test_paths_name_levels_from_the_widest_to_the_narrowest() -> None:
    assert Location.parse("/r1") == Location(rack="r1")
    assert Location.parse("/eu/r1") == Location(region="eu", rack="r1")
    assert Location.parse("/eu/a/r1") == Location("eu", "a", "r1")
    assert Location.parse("/eu/a/r1/h7") == Location("eu", "a", "r1", "h7")
    assert Location.parse("/zone=a/rack=r1") == Location(zone="a", rack="r1")
    assert Location.parse("/default-region/default-rack") == Location()
    for path in ("/r1", "/eu/r1", "/eu/a/r1", "/eu/a/r1/h7", "/zone=a/rack=r1"):
        assert str(Location.parse(path)) == path


@pytest.mark.parametrize("path", ["", "r1", "/", "/a//b", "/a b", "/a/b/c/d/e", "/row=3", "/rack=a/rack=b", "/rack="])
def test_what_is_no_path_is_refused_by_name(path: str) -> None:
    with pytest.raises(InvalidArgument, match="location"):
        Location.parse(path)


def test_racks_of_the_same_name_in_two_regions_are_two() -> None:
    where = Topology.of({"a": "/eu/r1", "b": "/us/r1", "c": "/eu/r1"})
    assert where.domain("a", "rack") == where.domain("c", "rack") != where.domain("b", "rack")
    assert where.domain("a", "zone") == where.domain("c", "zone") != where.domain("b", "zone"), "a region is a zone"
    assert where.domain("a", "host") is None
    assert where.domain("nobody", "rack") is None
    named = Topology.of({"a": "/eu/r1", "b": "/us/z/r1"})
    assert named.domain("a", "zone") is None


def test_what_an_operator_says_wins_and_the_host_stays() -> None:
    told = Topology({"a": Location(rack="old", host="h1"), "b": Location(host="h2")})
    both = Topology.of({"a": "/new"}, {"a": ("gold",)}).over(told)
    assert both.location("a") == Location(rack="new", host="h1")
    assert both.location("b") == Location(host="h2")
    assert both.labelled("a") == ("gold",)


def test_the_map_is_in_the_form_of_pulsars() -> None:
    value = b'{"default": {"a:1": {"rack": "/eu/r1", "hostname": "h1"}}, "gold": {"b:1": {"rack": "/r2"}}}'
    found = RackMap.decode("/x", value)
    assert found.topology() == Topology(
        {"a:1": Location(region="eu", rack="r1", host="h1"), "b:1": Location(rack="r2")}, {"b:1": ("gold",)}
    )
    assert RackMap.decode("/x", found.encode()) == found
    assert RackMap.decode("/x", b"") == RackMap()
    assert RackMap.decode("/x", b'{"default": {"a": {"rack": "nonsense"}}}').topology() == Topology()


@pytest.mark.parametrize("value", [b"[]", b"{", b'{"default": 3}', b'{"default": {"a": {}}}', b"\xff"])
def test_a_map_that_does_not_parse_names_key_and_cure(value: bytes) -> None:
    with pytest.raises(MalformedRecord, match=r"/x: not a rack mapping.*topology load"):
        RackMap.decode("/x", value)


def test_a_file_has_a_bookie_and_its_path_in_each_line() -> None:
    lines = ["# racks", "", "b1:3181 /eu/r1  gold silver", "b2:3181 /us/r1 # far"]
    found = parse_lines(lines, "racks.txt", ["b1:3181", "b2:3181"])
    assert found.paths == {"b1:3181": "/eu/r1", "b2:3181": "/us/r1"}
    assert found.labels == {"b1:3181": ("gold", "silver")}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("b1:3181", "not BOOKIE PATH"),
        ("b1:3181 r1", "needs a path"),
        ("b9:3181 /r1", "not known .known: b0:3181, b1:3181.*correct its name"),
        ("b0:3181 /r2", "in line 1 already"),
        ("b1:3181 /r1 a=b", "label"),
    ],
)
def test_a_bad_line_is_named_with_its_cure(line: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=f"racks.txt, line 2: .*{said}"):
        parse_lines(["b0:3181 /r1", line], "racks.txt", ["b0:3181", "b1:3181"])


def registered(address: str, **properties: str) -> BookieInfo:
    names = {"host": HOST_PROPERTY, "location": LOCATION_PROPERTY}
    found = {names[key]: value for key, value in properties.items()}
    return BookieInfo(address, BookieAddress(address, 3181), found)


@pytest.mark.parametrize(
    ("info", "location"),
    [
        (registered("10.0.0.1", host="m1"), Location(host="m1")),
        (registered("10.0.0.1"), Location(host="10.0.0.1")),
        (registered("bookie-1.example.org", location="/eu/r1"), Location("eu", None, "r1", "bookie-1.example.org")),
        (registered("127.0.0.1"), Location()),
        (registered("127.0.0.1", host="m1", location="/r1"), Location(rack="r1", host="m1")),
        (registered("::1"), Location()),
        (registered("localhost"), Location()),
        (registered("10.0.0.1", host="m1", location="/eu/a/r1/h7"), Location("eu", "a", "r1", "h7")),
        (registered("10.0.0.1", host="m1", location="nonsense"), Location(host="m1")),
        (BookieInfo("x", None, {}), Location()),
    ],
)
def test_a_host_is_what_a_bookie_registers_else_that_of_its_address(info: BookieInfo, location: Location) -> None:
    assert registered_topology({"b": info}).location("b") == location


def test_one_that_registers_no_host_is_where_its_neighbours_say_they_are() -> None:
    """An older version, or Apache's, beside ours on one machine."""
    ours, theirs = registered("10.0.0.1", host="m1"), registered("10.0.0.1")
    assert registered_topology({"a": ours, "b": theirs}).location("b").host == "m1"
    local = {"a": registered("127.0.0.1", host="m1"), "b": registered("127.0.0.1")}
    assert registered_topology(local).location("b").host == "m1"
    shared = {"a": ours, "b": theirs, "c": registered("10.0.0.1", host="m2")}
    assert registered_topology(shared).location("b").host == "10.0.0.1", "two machines behind one address"


def test_a_host_alone_may_be_set_and_the_rack_stays() -> None:
    told = Topology({"a": Location(region="eu", rack="r1", host="h1")})
    assert Topology.of({"a": "/host=h9"}).over(told).location("a") == Location(region="eu", rack="r1", host="h9")
