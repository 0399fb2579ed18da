package buckram

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestPartsAreSentAgainAndCompletingIsAskedOnce(t *testing.T) {
	ctx := within(t, 30*time.Second)
	gateway := newFake(t, "a", say(`{"upload":4,"object":"shop/a"}`), cut, say(`{"part":2,"bytes":3,"digest":"sha256:00"}`), say(aRow))
	upload, err := opened(t, gateway.URL).Objects("shop").BeginUpload(ctx, "a/b")
	if err != nil || upload.Number != 4 {
		t.Fatal(upload, err)
	}
	if part, err := upload.Put(ctx, 2, strings.NewReader("xyz")); err != nil || part.Number != 2 || part.Size != 3 {
		t.Error(part, err)
	}
	if _, err := upload.Complete(ctx, 3, &PutOptions{IfVersion: 9, Expires: time.Minute}); err != nil {
		t.Error(err)
	}
	all := gateway.requests()
	if len(all) != 4 || all[1].query != "part=2&upload=4" || all[2].body != "xyz" || all[1].path != "/v2/namespaces/shop/uploads/a/b" {
		t.Fatal(all)
	}
	if last := all[3]; last.body != `{"upload":4,"parts":3}` || last.query != "expires_s=60" || last.header.Get("If-Match") != `"9"` {
		t.Error(last)
	}
}

func TestAnUploadWithoutANumberIsNone(t *testing.T) {
	gateway := newFake(t, "a", say(`{}`))
	if _, err := opened(t, gateway.URL).Objects("shop").BeginUpload(within(t, 30*time.Second), "a"); !errors.Is(err, ErrBadAnswer) {
		t.Error(err)
	}
}
