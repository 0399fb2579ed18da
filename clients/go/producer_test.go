package buckram

import (
	"errors"
	"net/http"
	"testing"
	"time"
)

func TestAProducerCounts(t *testing.T) {
	gateway := newFake(t, "a", say(appendedOne))
	producer := opened(t, gateway.URL).Stream("shop", "orders").Producer("p", 10)
	for range 2 {
		if _, err := producer.Append(within(t, 30*time.Second), []Record{{Value: []byte("a")}, {Value: []byte("b")}}); err != nil {
			t.Fatal(err)
		}
	}
	sent := gateway.requests()
	if sent[0].query != "producer=p&producer_start=10&sequence=10" || sent[1].query != "producer=p&producer_start=10&sequence=12" {
		t.Error(sent)
	}
	if producer.Next() != 14 {
		t.Error(producer.Next())
	}
}

func TestRecordsInDoubtAreSentAgainBeforeOthers(t *testing.T) {
	doubt := with(outcomeHeader, "unknown", refuse(504, ErrOutcomeUnknown, ""))
	gateway := newFake(t, "a", doubt, refuse(403, ErrForbidden, ""), doubt, say(appendedOne))
	producer := opened(t, gateway.URL, WithAttempts(1)).Stream("shop", "orders").Producer("p", 0)
	if _, err := producer.Append(within(t, 30*time.Second), value("first")); !errors.Is(err, ErrOutcomeUnknown) {
		t.Fatal(err)
	}
	if producer.Next() != 1 {
		t.Error("the sequence of a record in doubt is given away:", producer.Next())
	}
	if _, err := producer.Append(within(t, 30*time.Second), value("second")); !errors.Is(err, ErrProducerInDoubt) || errors.Is(err, ErrOutcomeUnknown) {
		t.Fatal(err)
	}
	if err := producer.Flush(within(t, 30*time.Second)); !errors.Is(err, ErrOutcomeUnknown) {
		t.Fatal(err)
	}
	if _, err := producer.Append(within(t, 30*time.Second), value("second")); err != nil {
		t.Fatal(err)
	}
	var bodies []string
	for _, one := range gateway.requests() {
		bodies = append(bodies, one.body[4:]+" "+one.query[len("producer=p&sequence="):])
	}
	want := []string{"first 0", "first 0", "first 0", "first 0", "second 1"}
	for i, body := range want {
		if bodies[i] != body {
			t.Fatal(bodies)
		}
	}
	if producer.Next() != 2 {
		t.Error(producer.Next())
	}
}

func TestWhatWasRefusedTakesNoSequence(t *testing.T) {
	gateway := newFake(t, "a", refuse(413, ErrRecordTooLarge, ""), say(appendedOne))
	producer := opened(t, gateway.URL).Stream("shop", "orders").Producer("p", 0)
	if _, err := producer.Append(within(t, 30*time.Second), value("large")); !errors.Is(err, ErrRecordTooLarge) {
		t.Fatal(err)
	}
	if _, err := producer.Append(within(t, 30*time.Second), value("small")); err != nil || producer.Next() != 1 {
		t.Fatal(err)
	}
	if sent := gateway.requests(); len(sent) != 2 || sent[1].body[4:] != "small" {
		t.Error(sent)
	}
}

func TestAppendsSayWhatTheyWant(t *testing.T) {
	gateway := newFake(t, "a", say(`{"stream":"shop/orders","records":0,"first_offset":null,"last_offset":null}`))
	orders := opened(t, gateway.URL).Stream("shop", "orders")
	found, err := orders.Append(within(t, 30*time.Second), value("x"), &AppendOptions{ExpectOffset: At(0), Atomic: true, Create: true})
	if err != nil || found != (Appended{0, -1, -1}) {
		t.Fatal(found, err)
	}
	if sent := gateway.requests(); sent[0].query != "atomic=true&create=true&expect_offset=0" || sent[0].method != http.MethodPost {
		t.Error(sent)
	}
	if found, err := orders.Append(within(t, 30*time.Second), nil, nil); err != nil || found.Records != 0 || len(gateway.requests()) != 1 {
		t.Error("nothing to append is nothing to send:", found, err)
	}
	if _, err := orders.Append(within(t, 30*time.Second), value("x"), &AppendOptions{Sequence: 1}); !errors.Is(err, ErrInvalidArgument) {
		t.Error(err)
	}
}
