package buckram

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

// Tests with this name need gateways of one cluster: `tests/clients/test_go.py` starts them.
func live(t *testing.T) (here, there *Client) {
	t.Helper()
	all := os.Getenv("BUCKRAM_TEST_GATEWAYS")
	if all == "" {
		t.Skip("NO GATEWAY HERE: tests/clients/test_go.py runs these tests with one")
	}
	first, second, _ := strings.Cut(all, ",")
	var clients []*Client
	for _, address := range []string{first, second} {
		client, err := Open(address, WithTokenFile(os.Getenv("BUCKRAM_TEST_TOKEN_FILE")))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		clients = append(clients, client)
	}
	return clients[0], clients[1]
}

// must panics with an error that no test expects.
func must[T any](found T, err error) T {
	if err != nil {
		panic(err)
	}
	return found
}

// readable waits until all records before an offset can be read.
func readable(t *testing.T, stream *Stream, end int64) {
	t.Helper()
	for _, err := range stream.Tail(within(t, time.Minute), &TailOptions{From: At(end - 1)}) {
		if err != nil {
			t.Fatal(err)
		}
		break
	}
}

func TestLiveStreams(t *testing.T) {
	ctx := within(t, time.Minute)
	here, _ := live(t)
	if who := must(here.Session(ctx)); who.Principal == "" || !who.Tokens || !who.Administrator {
		t.Error(who)
	}
	if err := here.CreateNamespace(ctx, "go", map[string]any{"retention_s": 3600}); err != nil {
		t.Fatal(err)
	}
	orders := here.Stream("go", "orders")
	if _, err := orders.Append(ctx, value("x"), nil); !errors.Is(err, ErrNoSuchStream) {
		t.Error(err)
	}
	if info := must(orders.Create(ctx, &StreamOptions{Properties: map[string]string{"of": "shop"}})); info.Stream != "go/orders" {
		t.Error(info)
	}
	if _, err := orders.Create(ctx, nil); !errors.Is(err, ErrStreamExists) {
		t.Error(err)
	}
	txid := int64(4)
	moment := time.UnixMicro(1_700_000_000_000_000)
	sent := []Record{
		{Value: []byte("5 kg"), Key: []byte("ann"), Time: moment, TxID: &txid},
		{Value: []byte{0, 0xff}, Key: []byte("bob"), Headers: map[string][]byte{"text": []byte("é"), "bytes": {0xfe}}},
		{Key: []byte("ann")},
	}
	if got := must(orders.Append(ctx, sent, &AppendOptions{ExpectOffset: At(0), Atomic: true})); got != (Appended{3, 0, 2}) {
		t.Error(got)
	}
	var mismatch *Error
	if _, err := orders.Append(ctx, value("x"), &AppendOptions{ExpectOffset: At(1)}); !errors.As(err, &mismatch) || mismatch.Code != ErrOffsetMismatch {
		t.Fatal(err)
	}
	if expected, _ := mismatch.Number("expected"); expected != 1 {
		t.Error(mismatch.Details)
	}
	must(orders.Append(ctx, []Record{{Value: []byte("plain")}, {Value: []byte{}}, {}}, nil))
	readable(t, orders, 6)
	var got []Record
	for record, err := range orders.Records(ctx, &ReadOptions{Limit: 2}) {
		got = append(got, must(record, err))
	}
	if len(got) != 6 || got[5].Offset != 5 || string(got[3].Value) != "plain" || got[4].Value == nil || got[5].Value != nil {
		t.Fatal(got)
	}
	for i, want := range sent {
		one := got[i]
		if !reflect.DeepEqual(one.Value, want.Value) || string(one.Key) != string(want.Key) ||
			!reflect.DeepEqual(one.Headers, want.Headers) || !reflect.DeepEqual(one.TxID, want.TxID) {
			t.Errorf("%+v is not %+v", one, want)
		}
	}
	if !got[0].Time.Equal(moment) || time.Since(got[0].AppendTime).Abs() > time.Hour {
		t.Error(got[0].Time, got[0].AppendTime)
	}
	if one := must(orders.Get(ctx, 1)); !reflect.DeepEqual(one, got[1]) {
		t.Error(one)
	}
	if page := must(orders.Read(ctx, &ReadOptions{Since: got[0].AppendTime, Stop: 2})); len(page.Records) != 2 || page.Next != 2 {
		t.Error(page)
	}
	if page := must(orders.Read(ctx, &ReadOptions{Until: got[0].AppendTime})); len(page.Records) != 0 {
		t.Error(page)
	}
	if latest := must(orders.Latest(ctx)); latest != 6 {
		t.Error(latest)
	}
	var beyond *Error
	if _, err := orders.Get(ctx, 99); !errors.As(err, &beyond) || beyond.Code != ErrOffsetOutOfRange {
		t.Error(err)
	}
	if earliest := must(orders.Truncate(ctx, 3)); earliest > 3 {
		t.Error(earliest)
	}
	if _, err := orders.Append(ctx, value(strings.Repeat("x", 17<<20)), nil); !errors.Is(err, ErrTooLarge) && !errors.Is(err, ErrOutcomeUnknown) {
		t.Error(err)
	}
	if info := must(orders.Set(ctx, StreamOptions{Policy: map[string]any{"retention_s": 60}})); info.Overrides["retention_s"] == nil {
		t.Error(info)
	}
	var names []string
	for name, err := range here.Streams(ctx, "go", "") {
		names = append(names, must(name, err))
	}
	for name, err := range here.Namespaces(ctx, "g") {
		names = append(names, must(name, err))
	}
	if !reflect.DeepEqual(names, []string{"orders", "go"}) {
		t.Error(names)
	}
	if err := orders.Delete(ctx); err != nil {
		t.Error(err)
	}
	if _, err := orders.Info(ctx); !errors.Is(err, ErrNoSuchStream) {
		t.Error(err)
	}
}

func TestLiveCursorsAndTails(t *testing.T) {
	ctx := within(t, time.Minute)
	here, there := live(t)
	events := here.Stream("default", "events")
	must(events.Append(ctx, value("0"), &AppendOptions{Create: true}))
	readable(t, events, 1)
	if err := events.MoveCursor(ctx, "reader", 1); err != nil {
		t.Fatal(err)
	}
	if err := events.MoveCursor(ctx, "reader", 0); !errors.Is(err, ErrCursorMoved) {
		t.Error(err)
	}
	if cursor := must(events.Cursor(ctx, "reader")); cursor.Offset != 1 {
		t.Error(cursor)
	}
	var following sync.WaitGroup
	for _, one := range []struct {
		client  *Client
		options *TailOptions
		count   int
	}{{here, nil, 20}, {there, &TailOptions{FromEarliest: true}, 21}, {there, &TailOptions{From: At(1), Credit: 1}, 20}} {
		began := make(chan struct{})
		following.Add(1)
		go func() {
			defer following.Done()
			stream, options := one.client.Stream("default", "events"), one.options
			if options == nil {
				options = &TailOptions{From: At(must(stream.Latest(ctx)))}
			}
			close(began)
			count := 0
			for record, err := range stream.Tail(ctx, options) {
				if err != nil {
					t.Error(err)
					return
				}
				if string(record.Value) != fmt.Sprint(record.Offset) {
					t.Error(record)
				}
				count++
			}
			if count != one.count {
				t.Error("followed", count, "records, not", one.count)
			}
		}()
		<-began
	}
	for number := 1; number <= 20; number++ {
		must(events.Append(ctx, value(fmt.Sprint(number)), nil))
	}
	if end := must(events.End(ctx)); end != 21 {
		t.Error(end)
	}
	following.Wait()
	if err := events.DeleteCursor(ctx, "reader"); err != nil {
		t.Error(err)
	}
	if _, err := events.Append(ctx, value("x"), nil); !errors.Is(err, ErrStreamEnded) {
		t.Error(err)
	}
}

func TestLiveProducersAtTwoGateways(t *testing.T) {
	ctx := within(t, time.Minute)
	here, there := live(t)
	if got := must(here.Stream("default", "counted").Append(ctx, value("a"), &AppendOptions{Create: true, Producer: "p"})); got.Last != 0 {
		t.Error(got)
	}
	// The other gateway sends on to the first one, which has the stream.
	again := there.Stream("default", "counted")
	both := []Record{{Value: []byte("a")}, {Value: []byte("b")}}
	if got := must(again.Append(ctx, both, &AppendOptions{Producer: "p"})); got != (Appended{1, 1, 1}) {
		t.Error(got)
	}
	if there.gateways.choose("default/counted").base == there.gateways.bases[0] {
		t.Error("the way to the stream is not remembered")
	}
	producer := again.Producer("q", 5)
	must(producer.Append(ctx, both))
	if _, err := again.Append(ctx, value("c"), &AppendOptions{Producer: "q", Sequence: 9}); !errors.Is(err, ErrOutOfOrderSequence) {
		t.Error(err)
	}
	readable(t, again, 4)
	if info := must(again.Info(ctx)); info.End != 4 {
		t.Error(info.End)
	}
}

func TestLiveLedgers(t *testing.T) {
	ctx := within(t, time.Minute)
	here, there := live(t)
	ledger := must(here.CreateLedger(ctx, &LedgerOptions{Ensemble: "3/3/2", Digest: "mac", Password: "pä", CustomMetadata: map[string]string{"of": "go"}}))
	first, last, err := ledger.Append(ctx, []byte("a"), nil, []byte{0xff})
	if err != nil || first != 0 || last != 2 {
		t.Fatal(first, last, err)
	}
	elsewhere := there.Ledger(ledger.ID, "pä")
	if first, _, err := elsewhere.Append(ctx, []byte("d")); err != nil || first != 3 {
		t.Fatal("an append is sent on to the ledger's gateway:", first, err)
	}
	if info := must(ledger.Info(ctx)); info.State != "open" || info.CustomMetadata["of"] != "go" || len(info.Fragments[0].Ensemble) != 3 {
		t.Error(info)
	}
	if info := must(elsewhere.Close(ctx)); info.State != "closed" || *info.LastEntry != 3 {
		t.Error(info)
	}
	var got []string
	for entry, err := range elsewhere.Entries(ctx, 0) {
		got = append(got, string(must(entry, err).Payload))
	}
	if !reflect.DeepEqual(got, []string{"a", "", "\xff", "d"}) {
		t.Error(got)
	}
	if _, err := there.Ledger(ledger.ID, "other").Read(ctx, 0, 1); err == nil {
		t.Error("the password is not asked for")
	}
	if _, _, err := ledger.Append(ctx, []byte("e")); !errors.Is(err, ErrLedgerClosed) {
		t.Error(err)
	}
	left := must(here.CreateLedger(ctx, nil))
	if _, _, err := left.Append(ctx, []byte("f")); err != nil {
		t.Fatal(err)
	}
	if info := must(there.Ledger(left.ID, "").Recover(ctx)); info.State != "closed" || *info.LastEntry != 0 {
		t.Error(info)
	}
	found := 0
	for id, err := range here.Ledgers(ctx) {
		if id = must(id, err); id == ledger.ID || id == left.ID {
			found++
		}
	}
	if found != 2 {
		t.Error("ledgers that are listed:", found)
	}
	if err := ledger.Delete(ctx); err != nil {
		t.Error(err)
	}
	if _, err := ledger.Info(ctx); !errors.Is(err, ErrNoSuchLedger) {
		t.Error(err)
	}
}

func TestLiveWithoutAToken(t *testing.T) {
	here, _ := live(t)
	t.Setenv(EnvToken, "")
	t.Setenv(EnvTokenFile, "")
	client := must(Open(here.gateways.bases[0]))
	if _, err := client.Session(within(t, time.Minute)); !errors.Is(err, ErrUnauthorized) {
		t.Error(err)
	}
}
