package buckram

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

func readObject(t *testing.T, objects *Objects, name string, options *GetOptions) string {
	t.Helper()
	reader, err := objects.Get(within(t, time.Minute), name, options)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	return string(must(io.ReadAll(reader)))
}

func TestLiveObjects(t *testing.T) {
	ctx := within(t, time.Minute)
	here, there := live(t)
	if err := here.CreateNamespace(ctx, "things", nil); err != nil {
		t.Fatal(err)
	}
	objects, elsewhere := here.Objects("things"), there.Objects("things")
	if _, err := objects.Info(ctx, "none"); !errors.Is(err, ErrNoSuchObject) {
		t.Error(err)
	}
	if _, err := objects.Get(ctx, "none", nil); !errors.Is(err, ErrNoSuchObject) {
		t.Error(err)
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), 3<<16)
	name := "2026/ü berg+%?#.txt"
	put := must(objects.Put(ctx, name, bytes.NewReader(large), &PutOptions{IfAbsent: true, Expires: time.Hour,
		Metadata: map[string]string{"author": "Zoë\n"}}))
	if put.Name != name || put.Size != int64(len(large)) || put.Metadata["author"] != "Zoë\n" || put.Expires.Before(time.Now()) {
		t.Error(put)
	}
	seen := must(elsewhere.Info(ctx, name))
	seen.Time, put.Time = put.Time.Truncate(time.Second), put.Time.Truncate(time.Second)
	if !reflect.DeepEqual(seen, put) {
		t.Errorf("%+v is not %+v", seen, put)
	}
	if got := readObject(t, elsewhere, name, nil); got != string(large) {
		t.Error("other bytes came back:", len(got))
	}
	if got := readObject(t, objects, name, &GetOptions{Start: 16, Length: 4}); got != "0123" {
		t.Error(got)
	}
	if got := readObject(t, objects, name, &GetOptions{Start: int64(len(large)) - 2, Version: put.Version}); got != "ef" {
		t.Error(got)
	}
	if got := readObject(t, objects, name, &GetOptions{Start: int64(len(large)) - 2, Length: 99}); got != "ef" {
		t.Error(got)
	}
	if _, err := objects.Get(ctx, name, &GetOptions{Start: int64(len(large))}); !errors.Is(err, ErrRangeOutside) {
		t.Error(err)
	}
	if _, err := objects.Get(ctx, name, &GetOptions{Version: put.Version + 1}); !errors.Is(err, ErrObjectChanged) {
		t.Error(err)
	}
	if _, err := objects.Put(ctx, name, nil, &PutOptions{IfAbsent: true}); !errors.Is(err, ErrObjectExists) {
		t.Error(err)
	}
	if _, err := objects.Put(ctx, name, nil, &PutOptions{IfVersion: put.Version + 1}); !errors.Is(err, ErrObjectChanged) {
		t.Error(err)
	}
	again := must(objects.Put(ctx, name, oneWay{strings.NewReader("")}, &PutOptions{IfVersion: put.Version}))
	if again.Size != 0 || readObject(t, objects, name, nil) != "" {
		t.Error(again)
	}
	if _, err := objects.Put(ctx, "2026", nil, nil); !errors.Is(err, ErrNameBlocked) {
		t.Error(err)
	}
	if _, err := objects.Put(ctx, "../x", nil, nil); !errors.Is(err, ErrInvalidArgument) {
		t.Error(err)
	}
	must(objects.Copy(ctx, name, "copy", true))
	if err := objects.Rename(ctx, "copy", "dir/renamed", true); err != nil {
		t.Error(err)
	}
	var names []string
	for one, err := range elsewhere.List(ctx, "") {
		names = append(names, must(one, err).Name)
	}
	if !reflect.DeepEqual(names, []string{name, "dir/renamed"}) {
		t.Error(names)
	}
	if err := objects.Delete(ctx, name, put.Version); !errors.Is(err, ErrObjectChanged) {
		t.Error(err)
	}
	if err := objects.Delete(ctx, name, again.Version); err != nil {
		t.Error(err)
	}
	if err := objects.Delete(ctx, name, 0); !errors.Is(err, ErrNoSuchObject) {
		t.Error(err)
	}
	if err := objects.DeleteDirectory(ctx, "dir"); err != nil {
		t.Error(err)
	}
	for one, err := range objects.List(ctx, "") {
		t.Error("something is left:", one, err)
	}
}

func TestLiveUploads(t *testing.T) {
	ctx := within(t, time.Minute)
	here, there := live(t)
	objects := here.Objects("default")
	upload := must(objects.BeginUpload(ctx, "in/parts"))
	clients := []*Objects{objects, there.Objects("default")}
	var putting sync.WaitGroup
	for number := range 6 {
		putting.Add(1)
		go func() {
			defer putting.Done()
			other := clients[number%2].Upload("in/parts", upload.Number)
			if part := must(other.Put(ctx, number, strings.NewReader(fmt.Sprint(number)))); part.Size != 1 {
				t.Error(part)
			}
		}()
	}
	putting.Wait()
	must(upload.Put(ctx, 5, strings.NewReader("five")))
	var sizes []int64
	for part, err := range upload.Parts(ctx) {
		sizes = append(sizes, must(part, err).Size)
	}
	if !reflect.DeepEqual(sizes, []int64{1, 1, 1, 1, 1, 4}) {
		t.Error(sizes)
	}
	if _, err := upload.Complete(ctx, 7, nil); !errors.Is(err, ErrUploadIncomplete) {
		t.Error(err)
	}
	if _, err := objects.Upload("other", upload.Number).Put(ctx, 0, nil); !errors.Is(err, ErrNoSuchObject) {
		t.Error(err)
	}
	info := must(upload.Complete(ctx, 6, &PutOptions{IfAbsent: true, Metadata: map[string]string{"of": "go"}}))
	if info.Size != 9 || !strings.HasPrefix(info.Digest, "parts:") {
		t.Error(info)
	}
	if got := readObject(t, objects, "in/parts", nil); got != "01234five" {
		t.Error(got)
	}
	if _, err := upload.Put(ctx, 0, nil); !errors.Is(err, ErrNoSuchObject) {
		t.Error(err)
	}
	left := must(objects.BeginUpload(ctx, "left"))
	for range 2 {
		if err := left.Abort(ctx); err != nil {
			t.Error(err)
		}
	}
	if _, err := left.Complete(ctx, 1, nil); !errors.Is(err, ErrNoSuchObject) {
		t.Error(err)
	}
}
