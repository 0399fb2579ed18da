package buckram

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Objects are the objects of a namespace: immutable bytes under names, put as a whole or not at all. From
// Client.Objects.
type Objects struct {
	client    *Client
	namespace string
}

// Objects names the objects of a namespace. Nothing is sent.
func (c *Client) Objects(namespace string) *Objects { return &Objects{c, namespace} }

// ObjectInfo is what is known of an object.
type ObjectInfo struct {
	// Name without the namespace.
	Name string
	Size int64
	// Digest is sha256:HEX of all bytes, or parts:HEX-N of one that was put in N parts.
	Digest string
	// Version is another one after every put, copy and rename.
	Version int64
	// Time is when it was put; Info and Get give it without the fractions of its second.
	Time time.Time
	// Expires is when nobody can see it any more; the zero time where it stays.
	Expires time.Time
	// Metadata is what whoever put it has said about it.
	Metadata map[string]string
}

// PutOptions of one put; nil means none of them.
type PutOptions struct {
	// IfAbsent: put it only if nothing has this name; ErrObjectExists otherwise.
	IfAbsent bool
	// IfVersion: put it only in the place of this version; ErrObjectChanged otherwise. 0: whatever is there.
	IfVersion int64
	Metadata  map[string]string
	// Expires: it goes by itself after so long, in whole seconds. 0: it stays.
	Expires time.Duration
}

// GetOptions say what is read of an object; nil means all of it.
type GetOptions struct {
	// Start is the first byte.
	Start int64
	// Length is how many bytes are read at most; 0: to the end.
	Length int64
	// Version: ErrObjectChanged unless the object has this one. 0: the present one.
	Version int64
}

// List gives the objects that one may read and whose names begin with prefix, in the order of their names.
func (o *Objects) List(ctx context.Context, prefix string) iter.Seq2[ObjectInfo, error] {
	return paged(func(after string) ([]ObjectInfo, *string, error) {
		var found struct {
			Objects []objectRow `json:"objects"`
			Next    *string     `json:"next"`
		}
		r := o.request("list objects of "+o.namespace, http.MethodGet, "objects")
		r.query = pageQuery(prefix, after)
		_, err := o.client.ask(ctx, r, nil, &found)
		rows := make([]ObjectInfo, len(found.Objects))
		for i, row := range found.Objects {
			rows[i] = row.info(o.namespace)
		}
		return rows, found.Next, err
	})
}

// Info tells what is known of an object. ErrNoSuchObject.
func (o *Objects) Info(ctx context.Context, name string) (ObjectInfo, error) {
	r := o.object("look at object", http.MethodHead, name)
	got, err := o.client.call(ctx, r)
	if err != nil {
		return ObjectInfo{}, withCodeOfStatus(err)
	}
	found, err := infoOf(name, got.header, got.header.Get("Content-Length"))
	if err != nil {
		return ObjectInfo{}, o.client.unreadable(r, got, err)
	}
	return found, nil
}

// Put puts an object, in the place of one of this name: everybody sees all of it, or what was there before. It is
// durable when Put returns. body may have any size and be nil; one that is an io.Seeker can be sent again where that
// does no harm, others are sent once. An attempt ends when nothing of it goes on for the time of WithTimeout.
func (o *Objects) Put(ctx context.Context, name string, body io.Reader, options *PutOptions) (ObjectInfo, error) {
	r := o.object("put object", http.MethodPut, name)
	if err := options.say(r); err != nil {
		return ObjectInfo{}, err
	}
	return o.put(ctx, r, body)
}

// Delete deletes an object, or, unless version is 0, only this version of it. ErrNoSuchObject, ErrObjectChanged.
func (o *Objects) Delete(ctx context.Context, name string, version int64) error {
	r := o.object("delete object", http.MethodDelete, name)
	if version != 0 {
		r.header.Set("If-Match", tagOf(version))
	}
	_, err := o.client.ask(ctx, r, nil, nil)
	return err
}

// DeleteDirectory deletes a directory in one step, however much is in it. ErrNoSuchObject.
func (o *Objects) DeleteDirectory(ctx context.Context, path string) error {
	r := o.object("delete directory", http.MethodDelete, path)
	r.query = url.Values{"recursive": {"true"}}
	_, err := o.client.ask(ctx, r, nil, nil)
	return err
}

// Copy puts the object `source` under another name as well, without reading its bytes.
func (o *Objects) Copy(ctx context.Context, source, name string, ifAbsent bool) (ObjectInfo, error) {
	var found objectRow
	err := o.place(ctx, "copy", source, name, ifAbsent, &found)
	return found.info(o.namespace), err
}

// Rename gives the object or directory `source` another name, in one step.
func (o *Objects) Rename(ctx context.Context, source, name string, ifAbsent bool) error {
	return o.place(ctx, "rename", source, name, ifAbsent, nil)
}

func (o *Objects) place(ctx context.Context, verb, source, name string, ifAbsent bool, into any) error {
	r := o.request(fmt.Sprintf("%s object %s/%s to %s", verb, o.namespace, source, name), http.MethodPost, verb+"-object")
	asked := struct {
		Source   string `json:"source"`
		Name     string `json:"name"`
		IfAbsent bool   `json:"if_absent"`
	}{source, name, ifAbsent}
	_, err := o.client.ask(ctx, r, asked, into)
	return err
}

// put sends a request with a body from a reader, and reads what is known of the object then.
func (o *Objects) put(ctx context.Context, r *request, body io.Reader) (ObjectInfo, error) {
	var found objectRow
	err := o.sendBody(ctx, r, body, &found)
	return found.info(o.namespace), err
}

func (o *Objects) sendBody(ctx context.Context, r *request, body io.Reader, into any) error {
	source, err := newSource(body)
	if err != nil {
		return badArgument(r.op, err.Error())
	}
	r.media, r.source = mediaBytes, source
	_, err = o.client.ask(ctx, r, nil, into)
	return err
}

func (o *Objects) request(op, method string, more ...string) *request {
	path := pathOf(append([]string{"namespaces", o.namespace}, more...)...)
	return &request{op: op, method: method, path: path, header: http.Header{}}
}

func (o *Objects) object(what, method, name string) *request {
	return o.request(fmt.Sprintf("%s %s/%s", what, o.namespace, name), method, "objects", name)
}

// say puts the options into a request.
func (p *PutOptions) say(r *request) error {
	if p == nil {
		return nil
	}
	switch {
	case p.IfAbsent && p.IfVersion != 0:
		return badArgument(r.op, "IfAbsent and IfVersion exclude each other: give one of them")
	case p.IfVersion < 0 || p.Expires < 0 || p.Expires != 0 && p.Expires < time.Second:
		return badArgument(r.op, "IfVersion needs a version, and Expires at least a second")
	case p.IfAbsent:
		r.header.Set("If-None-Match", "*")
	case p.IfVersion != 0:
		r.header.Set("If-Match", tagOf(p.IfVersion))
	}
	if len(p.Metadata) > 0 {
		text, err := json.Marshal(p.Metadata)
		if err != nil {
			return badArgument(r.op, err.Error())
		}
		r.header.Set("Buckram-Metadata", string(text))
	}
	if p.Expires != 0 {
		r.query = url.Values{"expires_s": {strconv.FormatInt(int64(p.Expires/time.Second), 10)}}
	}
	return nil
}

// objectRow is an object as gateways list it.
type objectRow struct {
	Object   string            `json:"object"`
	Bytes    int64             `json:"bytes"`
	Digest   string            `json:"digest"`
	Version  int64             `json:"version"`
	Time     int64             `json:"time"`
	Expires  *int64            `json:"expires"`
	Metadata map[string]string `json:"metadata"`
}

func (row objectRow) info(namespace string) ObjectInfo {
	if row.Object == "" {
		return ObjectInfo{}
	}
	found := ObjectInfo{Name: strings.TrimPrefix(row.Object, namespace+"/"), Size: row.Bytes, Digest: row.Digest,
		Version: row.Version, Time: time.UnixMicro(row.Time), Metadata: row.Metadata}
	if row.Expires != nil {
		found.Expires = time.UnixMicro(*row.Expires)
	}
	return found
}

func tagOf(version int64) string { return `"` + strconv.FormatInt(version, 10) + `"` }

// infoOf reads what the headers of an answer say of an object.
func infoOf(name string, header http.Header, size string) (ObjectInfo, error) {
	found := ObjectInfo{Name: name, Digest: header.Get("Buckram-Digest")}
	var err error
	if found.Size, err = strconv.ParseInt(size, 10, 64); err != nil {
		return found, fmt.Errorf("the size %q is none", size)
	}
	if found.Version, err = strconv.ParseInt(strings.Trim(header.Get("ETag"), `"`), 10, 64); err != nil {
		return found, fmt.Errorf("the ETag %q is none", header.Get("ETag"))
	}
	if found.Time, err = http.ParseTime(header.Get("Last-Modified")); err != nil {
		return found, err
	}
	if text := header.Get("Buckram-Expires-Us"); text != "" {
		at, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return found, err
		}
		found.Expires = time.UnixMicro(at)
	}
	if text := header.Get("Buckram-Metadata"); text != "" {
		err = json.Unmarshal([]byte(text), &found.Metadata)
	}
	return found, err
}

// withCodeOfStatus gives the error of an answer without a body the code that a body would have had.
func withCodeOfStatus(err error) error {
	var found *Error
	if errors.As(err, &found) && found.Code == ErrBadAnswer {
		codes := map[int]Code{http.StatusBadRequest: ErrInvalidArgument, http.StatusUnauthorized: ErrUnauthorized,
			http.StatusForbidden: ErrForbidden, http.StatusNotFound: ErrNoSuchObject}
		if code, known := codes[found.Status]; known {
			found.Code = code
		}
	}
	return err
}
