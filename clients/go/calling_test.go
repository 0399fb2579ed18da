package buckram

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestReadsAreSentAgain(t *testing.T) {
	gateway := newFake(t, "a", cut, refuse(503, "METADATA_UNAVAILABLE", `,"retryable":true`), say(`{"principal":"token:ann"}`))
	found, err := opened(t, gateway.URL).Session(within(t, 30*time.Second))
	if err != nil || found.Principal != "token:ann" || len(gateway.requests()) != 3 {
		t.Fatal(found, err, len(gateway.requests()))
	}
}

func TestAttemptsHaveALimit(t *testing.T) {
	gateway := newFake(t, "a", cut)
	_, err := opened(t, gateway.URL, WithAttempts(2)).Session(within(t, 30*time.Second))
	if !errors.Is(err, ErrUnreachable) || errors.Is(err, ErrOutcomeUnknown) || len(gateway.requests()) != 2 {
		t.Fatal(err, len(gateway.requests()))
	}
}

func TestALostAnswerIsAskedForAgainWithTheKey(t *testing.T) {
	gateway := newFake(t, "a", cut, say(appendedOne))
	found, err := opened(t, gateway.URL).Stream("shop", "orders").Append(within(t, 30*time.Second), value("x"), nil)
	if err != nil || found != (Appended{1, 7, 7}) {
		t.Fatal(found, err)
	}
	sent := gateway.requests()
	key := sent[0].header.Get(keyHeader)
	if len(sent) != 2 || key == "" || sent[1].header.Get(keyHeader) != key || sent[1].body != sent[0].body {
		t.Fatal(sent)
	}
	for _, one := range sent {
		if one.header.Get(gatewayHeader) != "a" {
			t.Error("the request may reach another process:", one.header)
		}
	}
}

func TestEachChangeHasAKeyOfItsOwn(t *testing.T) {
	gateway := newFake(t, "a", say(appendedOne))
	orders := opened(t, gateway.URL).Stream("shop", "orders")
	for range 2 {
		if _, err := orders.Append(within(t, 30*time.Second), value("x"), nil); err != nil {
			t.Fatal(err)
		}
	}
	if sent := gateway.requests(); sent[0].header.Get(keyHeader) == sent[1].header.Get(keyHeader) {
		t.Fatal("two appends have one key")
	}
}

func TestARestartedGatewayDoesNotKnowTheKey(t *testing.T) {
	gateway := newFake(t, "a", nil)
	gateway.steps = []http.HandlerFunc{
		func(w http.ResponseWriter, r *http.Request) {
			gateway.id = "b" // while the append is carried out the process dies, and another one takes its address
			cut(w, r)
		},
		say(appendedOne),
	}
	_, err := opened(t, gateway.URL).Stream("shop", "orders").Append(within(t, 30*time.Second), value("x"), nil)
	if !errors.Is(err, ErrOutcomeUnknown) || len(gateway.requests()) != 1 {
		t.Fatal(err, len(gateway.requests()))
	}
}

func TestARestartedGatewayIsMetAnew(t *testing.T) {
	gateway := newFake(t, "a", say(appendedOne))
	orders := opened(t, gateway.URL).Stream("shop", "orders")
	for _, id := range []string{"a", "b", "b"} {
		gateway.id = id
		if _, err := orders.Append(within(t, 30*time.Second), value("x"), nil); err != nil {
			t.Fatal(id, err)
		}
	}
}

func TestAGatewayWithoutAnIdGetsAChangeOnce(t *testing.T) {
	gateway := newFake(t, "", cut)
	err := opened(t, gateway.URL).CreateNamespace(within(t, 30*time.Second), "shop", nil)
	if !errors.Is(err, ErrOutcomeUnknown) || len(gateway.requests()) != 1 {
		t.Fatal(err, len(gateway.requests()))
	}
}

func TestAGatewayThatMayHaveDoneItMustNotSendItOn(t *testing.T) {
	other := newFake(t, "b", say(appendedOne))
	gateway := newFake(t, "a", cut, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+r.URL.String(), http.StatusTemporaryRedirect)
	})
	_, err := opened(t, gateway.URL).Stream("shop", "orders").Append(within(t, 30*time.Second), value("x"), nil)
	if !errors.Is(err, ErrOutcomeUnknown) || len(other.requests()) != 0 {
		t.Fatal(err, other.requests())
	}
}

func TestWhatTheProcessSaysThatKnowsTheKeyIsTrue(t *testing.T) {
	for _, one := range []struct {
		step    http.HandlerFunc
		code    Code
		unknown bool
	}{
		{refuse(409, ErrOffsetMismatch, ""), ErrOffsetMismatch, false},
		{refuse(404, ErrNoSuchStream, ""), ErrNoSuchStream, false},
		{refuse(401, ErrUnauthorized, ""), ErrUnauthorized, true}, // that is found out before the key is looked at
	} {
		gateway := newFake(t, "a", cut, one.step)
		_, err := opened(t, gateway.URL).Stream("shop", "orders").Append(within(t, 30*time.Second), value("x"), nil)
		if !errors.Is(err, one.code) || errors.Is(err, ErrOutcomeUnknown) != one.unknown {
			t.Error(one.code, err)
		}
	}
}

func TestAProducersAppendIsSentAgainAnywhere(t *testing.T) {
	other := newFake(t, "b", say(appendedOne))
	gateway := newFake(t, "a", cut)
	orders := opened(t, gateway.URL+","+other.URL).Stream("shop", "orders")
	_, err := orders.Append(within(t, 30*time.Second), value("x"), &AppendOptions{Producer: "p", Sequence: 3})
	if err != nil || len(gateway.requests()) != 1 || len(other.requests()) != 1 {
		t.Fatal(err, gateway.requests(), other.requests())
	}
	if query := other.requests()[0].query; query != "producer=p&sequence=3" {
		t.Fatal(query)
	}
}

func TestWhatWasRefusedIsNotSentAgain(t *testing.T) {
	for _, one := range []struct {
		step    http.HandlerFunc
		code    Code
		unknown bool
	}{
		{refuse(409, ErrOffsetMismatch, `,"expected":4`), ErrOffsetMismatch, false},
		{with(outcomeHeader, "unknown", refuse(503, ErrWriterLost, `,"retryable":true`)), ErrWriterLost, true},
		{refuse(504, ErrOutcomeUnknown, ""), ErrOutcomeUnknown, true},
		{func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(502) }, ErrBadAnswer, true},
	} {
		gateway := newFake(t, "a", one.step)
		_, err := opened(t, gateway.URL).Stream("shop", "orders").Append(within(t, 30*time.Second), value("x"), nil)
		if !errors.Is(err, one.code) || errors.Is(err, ErrOutcomeUnknown) != one.unknown || len(gateway.requests()) != 1 {
			t.Error(err, len(gateway.requests()))
		}
	}
}

func TestWhatWasNotBegunIsSentAgain(t *testing.T) {
	gateway := newFake(t, "a", with("Retry-After", "0", refuse(503, ErrGatewayFull, "")), say(appendedOne))
	_, err := opened(t, gateway.URL).Stream("shop", "orders").Append(within(t, 30*time.Second), value("x"), nil)
	if err != nil || len(gateway.requests()) != 2 {
		t.Fatal(err)
	}
}

func TestRetryAfterIsWaitedFor(t *testing.T) {
	err := &Error{RetryAfter: 3 * time.Second}
	if pause := pauseBefore(1, err); pause < 3*time.Second {
		t.Error(pause)
	}
	for attempt := 1; attempt < 200; attempt++ {
		if pause := pauseBefore(attempt, nil); pause <= 0 || pause > longestStep {
			t.Fatal(attempt, pause)
		}
	}
	header := http.Header{"Retry-After": {"100000"}}
	if found := problem("x", &answer{status: 503, header: header}); found.RetryAfter != longestWait {
		t.Error(found.RetryAfter)
	}
}

func TestTheNextGatewayIsAskedWhereOneIsGone(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	gateway := newFake(t, "a", say(appendedOne))
	client := opened(t, gone.URL+","+gateway.URL)
	for range 2 {
		if _, err := client.Stream("shop", "orders").Append(within(t, 30*time.Second), value("x"), nil); err != nil {
			t.Fatal(err)
		}
	}
	if base := client.gateways.choose("").base; base != gateway.URL {
		t.Error("the gateway that is gone is asked first:", base)
	}
}

func TestAClientGoesWhereTheStreamIs(t *testing.T) {
	there := newFake(t, "b", say(appendedOne))
	here := newFake(t, "a", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, there.URL+r.URL.String(), http.StatusTemporaryRedirect)
	})
	orders := opened(t, here.URL, WithToken("secret")).Stream("shop", "orders")
	for range 2 {
		found, err := orders.Append(within(t, 30*time.Second), value("x"), &AppendOptions{Create: true})
		if err != nil || found.Last != 7 {
			t.Fatal(found, err)
		}
	}
	sent := there.requests()
	if len(here.requests()) != 1 || len(sent) != 2 {
		t.Fatal("the way is not remembered:", len(here.requests()), len(sent))
	}
	first := sent[0]
	if first.body != "\x00\x00\x00\x01x" || first.query != "create=true" || first.header.Get("Authorization") != "Bearer secret" {
		t.Fatal(first)
	}
}

func TestAWayThatLeadsNowhereIsForgotten(t *testing.T) {
	gateway := newFake(t, "a", say(appendedOne))
	client := opened(t, gateway.URL)
	gone := httptest.NewServer(nil)
	gone.Close()
	client.gateways.has("shop/orders", gone.URL)
	if _, err := client.Stream("shop", "orders").Append(within(t, 30*time.Second), value("x"), nil); err != nil {
		t.Fatal(err)
	}
}

func TestARequestIsSentOnAsItIsOrNotAtAll(t *testing.T) {
	r := &request{op: "x", path: "/v2/a", query: map[string][]string{"b": {"c"}}}
	from := func(base, location string) (string, error) {
		return redirection(r, &answer{header: http.Header{"Location": {location}}, from: process{base, ""}})
	}
	for base, location := range map[string]string{
		"http://h": "https://other:1/v2/a?b=c", "https://h": "https://other/under/v2/a?b=c",
	} {
		if found, err := from(base, location); err != nil || found+"/v2/a?b=c" != location {
			t.Error(found, err)
		}
	}
	for _, bad := range [][2]string{
		{"https://h", "http://other/v2/a?b=c"}, {"http://h", "http://other/v2/tokens?b=c"}, {"http://h", ""},
		{"http://h", "http://other/v2/a"}, {"http://h", "ftp://other/v2/a?b=c"}, {"http://h", "/v2/a?b=c"},
		{"http://h", "http://user@other/v2/a?b=c"}, {"http://h", "http://[/v2/a"},
	} {
		if found, err := from(bad[0], bad[1]); !errors.Is(err, ErrBadAnswer) {
			t.Error(bad, found, err)
		}
	}
}

func TestSendingOnWithoutEnd(t *testing.T) {
	gateway := newFake(t, "a", nil)
	gateway.steps[0] = func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, gateway.URL+r.URL.String(), http.StatusTemporaryRedirect)
	}
	_, err := opened(t, gateway.URL).Stream("shop", "orders").Append(within(t, 30*time.Second), value("x"), nil)
	if !errors.Is(err, ErrBadAnswer) || len(gateway.requests()) != mostHops {
		t.Fatal(err, len(gateway.requests()))
	}
}

func TestAContextEndsACall(t *testing.T) {
	gateway := newFake(t, "a", hang)
	client := opened(t, gateway.URL)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := client.Stream("shop", "orders").Append(ctx, value("x"), nil)
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrOutcomeUnknown) {
		t.Error(err)
	}
	ctx, cancel = context.WithCancel(context.Background())
	cancel()
	_, err = client.Session(ctx)
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrOutcomeUnknown) {
		t.Error(err)
	}
}

func TestAnAttemptHasATimeout(t *testing.T) {
	gateway := newFake(t, "a", hang, say(appendedOne))
	client := opened(t, gateway.URL, WithTimeout(200*time.Millisecond))
	if _, err := client.Stream("shop", "orders").Append(within(t, 30*time.Second), value("x"), nil); err != nil {
		t.Fatal(err)
	}
}

func TestACertificateOfNobodyEndsACall(t *testing.T) {
	tries := 0
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { tries++ }))
	server.Config.ErrorLog = nil
	defer server.Close()
	began := time.Now()
	_, err := opened(t, server.URL, WithAttempts(50)).Session(within(t, 30*time.Second))
	if !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "certificate") || tries != 0 {
		t.Fatal(err)
	}
	if time.Since(began) > 10*time.Second {
		t.Error("it was tried again")
	}
}

func TestAnAnswerThatIsNone(t *testing.T) {
	for _, step := range []http.HandlerFunc{say("<html>"), say(`{} {}`), say(``)} {
		gateway := newFake(t, "a", step)
		_, err := opened(t, gateway.URL).Session(within(t, 30*time.Second))
		if !errors.Is(err, ErrBadAnswer) || errors.Is(err, ErrOutcomeUnknown) {
			t.Error(err)
		}
		if err = opened(t, gateway.URL).Stream("a", "b").Delete(within(t, 30*time.Second)); err != nil {
			t.Error("nothing of this answer is needed:", err)
		}
	}
	gateway := newFake(t, "a", say("<html>"))
	_, err := opened(t, gateway.URL).Stream("a", "b").Append(within(t, 30*time.Second), value("x"), nil)
	if !errors.Is(err, ErrOutcomeUnknown) {
		t.Error(err)
	}
}

func TestErrorsSayWhatTheGatewaySaid(t *testing.T) {
	gateway := newFake(t, "a", refuse(410, ErrOffsetTruncated, `,"earliest":9007199254740993,"why":"old"`))
	_, err := opened(t, gateway.URL).Stream("shop", "orders").Get(within(t, 30*time.Second), 3)
	var found *Error
	if !errors.As(err, &found) || found.Status != 410 || found.Message != "no" || found.Details["why"] != "old" {
		t.Fatal(err)
	}
	if earliest, ok := found.Number("earliest"); !ok || earliest != 9007199254740993 {
		t.Error(earliest, ok)
	}
	if _, ok := found.Number("why"); ok {
		t.Error("a text is no number")
	}
	if text := err.Error(); text != "read record 3 of stream shop/orders: no (410 OFFSET_TRUNCATED)" {
		t.Error(text)
	}
}

func TestNamesStayInTheirPlaceOfThePath(t *testing.T) {
	gateway := newFake(t, "a", say(`{}`))
	if _, err := opened(t, gateway.URL).Stream("a/../b", "c?d=e").Info(within(t, 30*time.Second)); err != nil {
		t.Fatal(err)
	}
	if got := gateway.requests()[0].path; got != "/v2/namespaces/a/../b/streams/c?d=e" { // as one part each, decoded
		t.Error(got)
	}
}

func TestAnAnswerThatIsTooLarge(t *testing.T) {
	body := io.NopCloser(io.LimitReader(endless{}, mostAnswerBytes+2))
	_, err := readAnswer(&http.Response{StatusCode: 200, Body: body}, process{})
	if err == nil || !strings.Contains(err.Error(), "more than") {
		t.Fatal(err)
	}
}

type endless struct{}

func (endless) Read(into []byte) (int, error) { return len(into), nil }
