package buckram

import (
	"context"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
)

// Upload is an object that is put in parts, by any number of programs. It exists from BeginUpload to Complete or Abort,
// for a week at most.
type Upload struct {
	// Name of the object.
	Name string
	// Number of the upload, for other programs: Objects.Upload.
	Number  int64
	objects *Objects
}

// Part of an upload.
type Part struct {
	// Number is its place in the object, 0 for the first one.
	Number int    `json:"part"`
	Size   int64  `json:"bytes"`
	Digest string `json:"digest"`
}

// BeginUpload begins an object that is put in parts.
func (o *Objects) BeginUpload(ctx context.Context, name string) (*Upload, error) {
	var found struct {
		Upload *int64 `json:"upload"`
	}
	r := o.request(fmt.Sprintf("begin an upload of object %s/%s", o.namespace, name), http.MethodPost, "uploads", name)
	from, err := o.client.ask(ctx, r, nil, &found)
	if err != nil {
		return nil, err
	}
	if found.Upload == nil {
		return nil, o.client.unreadable(r, &answer{from: from}, nil)
	}
	return o.Upload(name, *found.Upload), nil
}

// Upload names an upload that was begun. Nothing is sent.
func (o *Objects) Upload(name string, number int64) *Upload { return &Upload{name, number, o} }

// Put puts a part as a whole or not at all, in the place of one of the same number (0 to 9999). It takes a body as
// Objects.Put does. ErrNoSuchObject where the upload is over.
func (u *Upload) Put(ctx context.Context, part int, body io.Reader) (Part, error) {
	r := u.request(fmt.Sprintf("put part %d of", part), http.MethodPut, "uploads")
	r.query.Set("part", strconv.Itoa(part))
	r.repeated = always
	var found Part
	err := u.objects.sendBody(ctx, r, body, &found)
	return found, err
}

// Parts gives the parts that are there, by their numbers.
func (u *Upload) Parts(ctx context.Context) iter.Seq2[Part, error] {
	return func(yield func(Part, error) bool) {
		after := -1
		for {
			var found struct {
				Parts []Part `json:"parts"`
				Next  *int   `json:"next"`
			}
			r := u.request("list the parts of", http.MethodGet, "uploads")
			r.query.Set("after", strconv.Itoa(after))
			r.query.Set("limit", strconv.Itoa(pageSize))
			if _, err := u.objects.client.ask(ctx, r, nil, &found); err != nil {
				yield(Part{}, err)
				return
			}
			for _, part := range found.Parts {
				if !yield(part, nil) {
					return
				}
			}
			if found.Next == nil || *found.Next <= after {
				return
			}
			after = *found.Next
		}
	}
}

// Complete makes the object of the parts 0 to parts-1, in one step. ErrUploadIncomplete where one is missing.
func (u *Upload) Complete(ctx context.Context, parts int, options *PutOptions) (ObjectInfo, error) {
	r := u.request("complete", http.MethodPost, "complete-upload")
	r.query = nil
	if err := options.say(r); err != nil {
		return ObjectInfo{}, err
	}
	asked := struct {
		Upload int64 `json:"upload"`
		Parts  int   `json:"parts"`
	}{u.Number, parts}
	var found objectRow
	_, err := u.objects.client.ask(ctx, r, asked, &found)
	return found.info(u.objects.namespace), err
}

// Abort gives the upload up, and its space back. One that is over is left as it is.
func (u *Upload) Abort(ctx context.Context) error {
	r := u.request("give up", http.MethodDelete, "uploads")
	r.repeated = always
	_, err := u.objects.client.ask(ctx, r, nil, nil)
	return err
}

func (u *Upload) request(what, method, path string) *request {
	op := fmt.Sprintf("%s upload %d of object %s/%s", what, u.Number, u.objects.namespace, u.Name)
	r := u.objects.request(op, method, path, u.Name)
	r.query = url.Values{"upload": {strconv.FormatInt(u.Number, 10)}}
	return r
}
