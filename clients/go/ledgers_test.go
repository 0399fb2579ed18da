package buckram

import (
	"errors"
	"net/http"
	"testing"
	"time"
)

func TestALedgerIsWrittenWhereItWasCreated(t *testing.T) {
	first := newFake(t, "a", refuse(409, ErrLedgerClosed, ""))
	second := newFake(t, "b", say(`{"ledger":5}`), say(`{"ledger":5,"entries":2,"first_entry":0,"last_entry":1}`))
	client := opened(t, second.URL+","+first.URL)
	ledger, err := client.CreateLedger(within(t, 30*time.Second), &LedgerOptions{Namespace: "shop", Password: "pä"})
	if err != nil || ledger.ID != 5 {
		t.Fatal(err)
	}
	client.gateways.first = 1
	from, to, err := ledger.Append(within(t, 30*time.Second), []byte("a"), nil)
	if err != nil || from != 0 || to != 1 {
		t.Fatal(from, to, err)
	}
	sent := second.requests()
	if sent[0].body != `{"namespace":"shop"}` || sent[1].body != "\x00\x00\x00\x01a\x00\x00\x00\x00" {
		t.Error(sent)
	}
	for _, one := range sent {
		if one.header.Get("Buckram-Password") != "pä" {
			t.Error("without its password:", one.header)
		}
	}
	if _, _, err := ledger.Append(within(t, 30*time.Second)); !errors.Is(err, ErrInvalidArgument) {
		t.Error(err)
	}
}

func TestEntriesGoOnFromPageToPage(t *testing.T) {
	page := func(next, text string) http.HandlerFunc { return with("Buckram-Next-Entry", next, say(text)) }
	gateway := newFake(t, "a",
		page("2", `{"entry": 0, "payload_base64": "eA=="}`+"\n"+`{"entry": 1, "payload_base64": ""}`+"\n"), page("2", ""))
	count := 0
	for entry, err := range opened(t, gateway.URL).Ledger(5, "").Entries(within(t, 30*time.Second), 0) {
		if err != nil || entry.ID != int64(count) || len(entry.Payload) != 1-count {
			t.Fatal(entry, err)
		}
		count++
	}
	if sent := gateway.requests(); count != 2 || sent[1].query != "first=2" {
		t.Error(count, sent)
	}
}

func TestClosingIsSentAgain(t *testing.T) {
	gateway := newFake(t, "a", cut, say(`{"ledger":5,"state":"closed","last_entry":-1}`))
	found, err := opened(t, gateway.URL).Ledger(5, "").Close(within(t, 30*time.Second))
	if err != nil || found.State != "closed" || *found.LastEntry != -1 {
		t.Fatal(found, err)
	}
}
