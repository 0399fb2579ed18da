package buckram

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"
)

// pageOf answers with records of these offsets.
func pageOf(next int64, offsets ...int64) http.HandlerFunc {
	var text strings.Builder
	for _, offset := range offsets {
		text.WriteString(recordLine(offset) + "\n")
	}
	return with("Buckram-Next-Offset", fmt.Sprint(next), say(text.String()))
}

func recordLine(offset int64) string {
	return fmt.Sprintf(`{"offset": %d, "timestamp_us": 1, "append_time_us": 2, "key_base64": null, "value_base64": "eA=="}`, offset)
}

func TestRecordsGoOnFromPageToPage(t *testing.T) {
	gateway := newFake(t, "a", pageOf(2, 0, 1), pageOf(9, 5, 8), pageOf(11), pageOf(12, 11), pageOf(12))
	var got []int64
	for record, err := range opened(t, gateway.URL).Stream("shop", "orders").Records(within(t, 30*time.Second), nil) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, record.Offset)
	}
	if !reflect.DeepEqual(got, []int64{0, 1, 5, 8, 11}) {
		t.Error(got)
	}
	var asked []string
	for _, one := range gateway.requests() {
		asked = append(asked, one.query)
	}
	if !reflect.DeepEqual(asked, []string{"", "start=2", "start=9", "start=11", "start=12"}) {
		t.Error(asked)
	}
}

func TestWhatIsReadCanBeLimited(t *testing.T) {
	gateway := newFake(t, "a", pageOf(6, 5), pageOf(7, 6), pageOf(7))
	orders := opened(t, gateway.URL).Stream("shop", "orders")
	count := 0
	options := &ReadOptions{Since: time.UnixMicro(40), Until: time.UnixMicro(50), Stop: 7, Limit: 1}
	for _, err := range orders.Records(within(t, 30*time.Second), options) {
		if err != nil {
			t.Fatal(err)
		}
		count++
	}
	sent := gateway.requests()
	if count != 2 || len(sent) != 2 || sent[0].query != "limit=1&since=40&stop=7&until=50" ||
		sent[1].query != "limit=1&start=6&stop=7&until=50" {
		t.Error(count, sent)
	}
	for range orders.Records(within(t, 30*time.Second), &ReadOptions{From: At(0)}) {
		break
	}
	if last := gateway.requests(); last[len(last)-1].query != "start=0" {
		t.Error(last)
	}
	if _, err := orders.Read(within(t, 30*time.Second), &ReadOptions{From: At(1), Since: time.Now()}); !errors.Is(err, ErrInvalidArgument) {
		t.Error(err)
	}
}

func TestAnErrorIsTheLastOfWhatIsRead(t *testing.T) {
	gateway := newFake(t, "a", pageOf(1, 0), refuse(404, ErrNoSuchStream, ""))
	records, errs := 0, 0
	for _, err := range opened(t, gateway.URL).Stream("shop", "orders").Records(within(t, 30*time.Second), nil) {
		if err == nil {
			records++
		} else if errs++; !errors.Is(err, ErrNoSuchStream) {
			t.Error(err)
		}
	}
	if records != 1 || errs != 1 {
		t.Error(records, errs)
	}
}

func TestAPageThatIsNone(t *testing.T) {
	for _, step := range []http.HandlerFunc{say(recordLine(0)), with("Buckram-Next-Offset", "1", say("{")), pageOf(1, -1)} {
		gateway := newFake(t, "a", step)
		page, err := opened(t, gateway.URL).Stream("shop", "orders").Read(within(t, 30*time.Second), nil)
		if page.Next == 1 && len(page.Records) == 1 {
			continue // the gateway says what offsets are
		}
		if !errors.Is(err, ErrBadAnswer) {
			t.Error(page, err)
		}
	}
}

func TestListsArePaged(t *testing.T) {
	gateway := newFake(t, "a", say(`{"streams":["a","b"],"next":"b"}`), say(`{"streams":["c"],"next":null}`),
		say(`{"namespaces":["n"],"next":null}`), say(`{"cursors":[{"cursor":"r","offset":4,"lag":1,"changed_us":2}],"next":null}`),
		say(`{"cursors":[],"next":null}`))
	client := opened(t, gateway.URL)
	var names []string
	for name, err := range client.Streams(within(t, 30*time.Second), "shop", "x") {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	for name, err := range client.Namespaces(within(t, 30*time.Second), "") {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	if !reflect.DeepEqual(names, []string{"a", "b", "c", "n"}) {
		t.Error(names)
	}
	if sent := gateway.requests(); sent[1].query != "after=b&limit=1000&prefix=x" {
		t.Error(sent[1])
	}
	orders := client.Stream("shop", "orders")
	if found, err := orders.Cursor(within(t, 30*time.Second), "r"); err != nil || found != (Cursor{"r", 4, 1, 2}) {
		t.Error(found, err)
	}
	if _, err := orders.Cursor(within(t, 30*time.Second), "r"); !errors.Is(err, ErrNoSuchCursor) {
		t.Error(err)
	}
}
