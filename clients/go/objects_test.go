package buckram

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

const aRow = `{"object":"shop/a","bytes":6,"digest":"sha256:00","version":7,"time":1700000000000000,"expires":null,"metadata":{"of":"é"}}`

// sent answers as a gateway does that sends an object of six bytes.
func sent(status int, text, span string, length string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"7"`)
		w.Header().Set("Last-Modified", "Tue, 14 Nov 2023 22:13:20 GMT")
		w.Header().Set("Buckram-Metadata", `{"of":"é"}`)
		w.Header().Set("Content-Length", length)
		if span != "" {
			w.Header().Set("Content-Range", span)
		}
		w.WriteHeader(status)
		if r.Method != http.MethodHead {
			io.WriteString(w, text)
			w.(http.Flusher).Flush()
			if length != "" && len(text) < 6 && span == "" {
				panic(http.ErrAbortHandler)
			}
		}
	}
}

// oneWay hides that a reader can go back.
type oneWay struct{ io.Reader }

func TestAPutIsSentAgainOnlyFromWhatCanGoBack(t *testing.T) {
	ctx := within(t, 30*time.Second)
	gateway := newFake(t, "a", cut, say(aRow))
	objects := opened(t, gateway.URL).Objects("shop")
	body := strings.NewReader("..abcdef")
	body.Seek(2, io.SeekStart)
	info, err := objects.Put(ctx, "2026/a", body, &PutOptions{IfAbsent: true, Metadata: map[string]string{"of": "é"}, Expires: time.Hour})
	if err != nil || info.Version != 7 || info.Name != "a" || info.Metadata["of"] != "é" || !info.Expires.IsZero() {
		t.Fatal(info, err)
	}
	all := gateway.requests()
	if len(all) != 2 || all[0].body != "abcdef" || all[1].body != "abcdef" {
		t.Fatal(all)
	}
	key := all[0].header.Get(keyHeader)
	if key == "" || all[1].header.Get(keyHeader) != key {
		t.Error("the repetition has another key")
	}
	first := all[0]
	if first.path != "/v2/namespaces/shop/objects/2026/a" || first.query != "expires_s=3600" || first.header.Get("If-None-Match") != "*" {
		t.Error(first)
	}
	if first.header.Get("Buckram-Metadata") != `{"of":"é"}` {
		t.Error(first.header)
	}
	lost := newFake(t, "b", cut, say(aRow))
	_, err = opened(t, lost.URL).Objects("shop").Put(ctx, "a", oneWay{strings.NewReader("abcdef")}, nil)
	if !errors.Is(err, ErrOutcomeUnknown) || len(lost.requests()) != 1 {
		t.Error(err, lost.requests())
	}
	full := newFake(t, "c", refuse(503, ErrGatewayFull, ""), say(aRow))
	if _, err = opened(t, full.URL).Objects("shop").Put(ctx, "a", bytes.NewReader(make([]byte, 1<<20)), nil); err != nil {
		t.Error(err)
	}
	if all := full.requests(); len(all) != 2 || len(all[1].body) != 1<<20 {
		t.Error(len(all))
	}
}

func TestAnEmptyBodyIsOne(t *testing.T) {
	gateway := newFake(t, "a", say(aRow))
	for _, body := range []io.Reader{nil, strings.NewReader(""), oneWay{strings.NewReader("")}} {
		if _, err := opened(t, gateway.URL).Objects("shop").Put(within(t, 30*time.Second), "a", body, nil); err != nil {
			t.Error(err)
		}
	}
	for _, one := range gateway.requests() {
		if one.body != "" {
			t.Error(one)
		}
	}
}

type failing struct{ after io.Reader }

var errTorn = errors.New("the disk is torn")

func (f failing) Read(into []byte) (int, error) {
	n, err := f.after.Read(into)
	if err != nil {
		err = errTorn
	}
	return n, err
}

func TestAReaderThatFailsIsNoFaultOfTheGateway(t *testing.T) {
	gateway := newFake(t, "a", say(aRow))
	_, err := opened(t, gateway.URL).Objects("shop").Put(within(t, 30*time.Second), "a", failing{strings.NewReader("abc")}, nil)
	if !errors.Is(err, errTorn) || errors.Is(err, ErrOutcomeUnknown) {
		t.Error(err)
	}
}

func TestAPutThatStandsStillEnds(t *testing.T) {
	gateway := newFake(t, "a", say(aRow))
	reader, writer := io.Pipe()
	defer writer.Close()
	client := opened(t, gateway.URL, WithTimeout(50*time.Millisecond), WithAttempts(1))
	if _, err := client.Objects("shop").Put(within(t, 30*time.Second), "a", reader, nil); err == nil {
		t.Error("nobody sends anything")
	}
}

func TestBadOptionsOfObjectsAreRefused(t *testing.T) {
	gateway := newFake(t, "a", say(aRow))
	objects, ctx := opened(t, gateway.URL).Objects("shop"), within(t, 30*time.Second)
	for _, options := range []PutOptions{{IfAbsent: true, IfVersion: 1}, {IfVersion: -1}, {Expires: time.Millisecond}, {Expires: -time.Hour}} {
		if _, err := objects.Put(ctx, "a", nil, &options); !errors.Is(err, ErrInvalidArgument) {
			t.Error(options, err)
		}
	}
	for _, options := range []GetOptions{{Start: -1}, {Length: -1}, {Version: -1}} {
		if _, err := objects.Get(ctx, "a", &options); !errors.Is(err, ErrInvalidArgument) {
			t.Error(options, err)
		}
	}
	if len(gateway.requests()) != 0 {
		t.Error("something was sent")
	}
}

func TestAReadGoesOnWhereTheConnectionWasLost(t *testing.T) {
	gateway := newFake(t, "a", sent(200, "abc", "", "6"), cut, refuse(503, ErrGatewayFull, ""), sent(206, "def", "bytes 3-5/6", "3"))
	reader, err := opened(t, gateway.URL).Objects("shop").Get(within(t, 30*time.Second), "a", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	got, err := io.ReadAll(reader)
	if err != nil || string(got) != "abcdef" {
		t.Fatal(string(got), err)
	}
	if info := reader.Info; info.Size != 6 || info.Version != 7 || info.Metadata["of"] != "é" || info.Time.Unix() != 1_700_000_000 {
		t.Error(info)
	}
	all := gateway.requests()
	if last := all[len(all)-1].header; len(all) != 4 || last.Get("Range") != "bytes=3-5" || last.Get("If-Match") != `"7"` {
		t.Error(all)
	}
}

func TestAReadNeverMixesVersionsOrPlaces(t *testing.T) {
	for name, step := range map[string]http.HandlerFunc{
		"another version":   refuse(412, ErrObjectChanged, ""),
		"another place":     sent(206, "abc", "bytes 0-2/6", "3"),
		"no place":          sent(206, "def", "pages 3-5/6", "3"),
		"it is gone":        refuse(404, ErrNoSuchObject, ""),
		"all of it again":   sent(200, "abcdef", "", "6"),
		"no version at all": say("def"),
	} {
		gateway := newFake(t, "a", sent(200, "abc", "", "6"), step)
		reader, err := opened(t, gateway.URL).Objects("shop").Get(within(t, 30*time.Second), "a", nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(reader)
		if err == nil || string(got) != "abc" {
			t.Error(name, string(got), err)
		}
		reader.Close()
	}
}

func TestAReaderThatIsClosedReadsNoMore(t *testing.T) {
	gateway := newFake(t, "a", sent(200, "abcdef", "", "6"))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	reader, err := opened(t, gateway.URL).Objects("shop").Get(ctx, "a", nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := reader.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := reader.Read(make([]byte, 1)); !errors.Is(err, ErrInvalidArgument) {
		t.Error(err)
	}
}

func TestInfoHasTheCodesOfItsStatuses(t *testing.T) {
	ctx := within(t, 30*time.Second)
	for status, code := range map[int]Code{404: ErrNoSuchObject, 403: ErrForbidden, 401: ErrUnauthorized} {
		gateway := newFake(t, "a", refuse(status, "ANY", ""))
		if _, err := opened(t, gateway.URL).Objects("shop").Info(ctx, "a"); !errors.Is(err, code) {
			t.Error(status, err)
		}
	}
	gateway := newFake(t, "a", sent(200, "", "", "6"))
	info, err := opened(t, gateway.URL).Objects("shop").Info(ctx, "a")
	if err != nil || info.Size != 6 || info.Version != 7 {
		t.Error(info, err)
	}
	if asked := gateway.requests()[0]; asked.method != http.MethodHead || asked.header.Get(keyHeader) != "" {
		t.Error(asked)
	}
	if _, err := opened(t, newFake(t, "b", say("")).URL).Objects("shop").Info(ctx, "a"); !errors.Is(err, ErrBadAnswer) {
		t.Error(err)
	}
}
