package buckram

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
)

// Ledger is a ledger by its id; it need not exist. From Client.CreateLedger and Client.Ledger.
type Ledger struct {
	// ID of the ledger.
	ID       int64
	client   *Client
	password string
}

// LedgerOptions are settings of a new ledger; nil means the defaults.
type LedgerOptions struct {
	// Namespace decides who may use it; "" means "default".
	Namespace string `json:"namespace,omitempty"`
	// Ensemble is E/W/A, such as "3/3/2", which is the default.
	Ensemble string `json:"ensemble,omitempty"`
	// Digest is crc32c (the default), crc32, mac or dummy.
	Digest         string            `json:"digest,omitempty"`
	CustomMetadata map[string]string `json:"custom_metadata,omitempty"`
	// Password that reading and closing need as well; it has no control characters.
	Password string `json:"-"`
}

// LedgerInfo is what is known of a ledger.
type LedgerInfo struct {
	Ledger int64 `json:"ledger"`
	// State is open, in_recovery or closed.
	State string `json:"state"`
	// LastEntry is set when it is closed; -1 is that of an empty one.
	LastEntry      *int64            `json:"last_entry"`
	Length         *int64            `json:"length"`
	EnsembleSize   int               `json:"ensemble_size"`
	WriteQuorum    int               `json:"write_quorum"`
	AckQuorum      int               `json:"ack_quorum"`
	Fragments      []Fragment        `json:"fragments"`
	CustomMetadata map[string]string `json:"custom_metadata"`
}

// Fragment is a part of a ledger that is on the same bookies.
type Fragment struct {
	FirstEntry int64    `json:"first_entry"`
	Ensemble   []string `json:"ensemble"`
}

// Entry of a ledger.
type Entry struct {
	ID      int64
	Payload []byte
}

// Entries is some entries of a ledger.
type Entries struct {
	Entries []Entry
	// Next is the entry at which the next page begins.
	Next int64
}

// CreateLedger makes a ledger, whose writer is the gateway until it is closed, or nobody appends for a minute.
func (c *Client) CreateLedger(ctx context.Context, options *LedgerOptions) (*Ledger, error) {
	if options == nil {
		options = &LedgerOptions{}
	}
	var found struct {
		Ledger int64 `json:"ledger"`
	}
	r := &request{op: "create ledger", method: http.MethodPost, path: pathOf("ledgers"),
		header: passwordHeader(options.Password)}
	from, err := c.ask(ctx, r, options, &found)
	if err != nil {
		return nil, err
	}
	ledger := c.Ledger(found.Ledger, options.Password)
	c.gateways.has(ledger.route(), from.base)
	return ledger, nil
}

// Ledger names a ledger, with the password that it was created with. Nothing is sent.
func (c *Client) Ledger(id int64, password string) *Ledger { return &Ledger{id, c, password} }

// Ledgers gives the ids of the ledgers that one may read, in order.
func (c *Client) Ledgers(ctx context.Context) iter.Seq2[int64, error] {
	return func(yield func(int64, error) bool) {
		after := ""
		for {
			var found struct {
				Ledgers []struct {
					Ledger int64 `json:"ledger"`
				} `json:"ledgers"`
				Next *int64 `json:"next"`
			}
			r := &request{op: "list ledgers", method: http.MethodGet, path: pathOf("ledgers"),
				query: pageQuery("", after)}
			if _, err := c.ask(ctx, r, nil, &found); err != nil {
				yield(0, err)
				return
			}
			for _, one := range found.Ledgers {
				if !yield(one.Ledger, nil) {
					return
				}
			}
			if found.Next == nil {
				return
			}
			after = strconv.FormatInt(*found.Next, 10)
		}
	}
}

// Append writes entries and returns the ids of the first and the last one when a quorum of bookies has them on disk.
// ErrLedgerClosed where no gateway has its writer any more.
func (l *Ledger) Append(ctx context.Context, payloads ...[]byte) (first, last int64, err error) {
	r := l.request("append to", http.MethodPost, "entries")
	if len(payloads) == 0 {
		return 0, 0, badArgument(r.op, "there is no entry: give one at least")
	}
	for _, payload := range payloads {
		if payload == nil {
			payload = []byte{}
		}
		r.body = appendFramed(r.body, payload)
	}
	r.media = mediaValues
	got, err := l.client.call(ctx, r)
	if err != nil {
		return 0, 0, err
	}
	var found struct {
		First *int64 `json:"first_entry"`
		Last  *int64 `json:"last_entry"`
	}
	if err := decodeJSON(got.body, &found); err != nil || found.First == nil || found.Last == nil {
		return 0, 0, l.client.unreadable(r, got, err)
	}
	return *found.First, *found.Last, nil
}

// Read reads a page of entries from `first` on: `limit` of them (0 means 1000, the most is 10,000) or 8 MiB, or fewer
// where the ledger ends.
func (l *Ledger) Read(ctx context.Context, first int64, limit int) (Entries, error) {
	r := l.request("read", http.MethodGet, "entries")
	r.query = url.Values{"first": {strconv.FormatInt(first, 10)}}
	if limit != 0 {
		r.query.Set("limit", strconv.Itoa(limit))
	}
	r.header.Set("Accept", mediaLines)
	got, err := l.client.call(ctx, r)
	if err != nil {
		return Entries{}, err
	}
	var page Entries
	err = lines(got.body, func(text []byte) error {
		var one struct {
			Entry   *int64 `json:"entry"`
			Payload []byte `json:"payload_base64"`
		}
		if err := json.Unmarshal(text, &one); err != nil {
			return err
		}
		if one.Entry == nil {
			return fmt.Errorf("an entry has no id")
		}
		page.Entries = append(page.Entries, Entry{*one.Entry, one.Payload})
		return nil
	})
	if err == nil {
		page.Next, err = strconv.ParseInt(got.header.Get("Buckram-Next-Entry"), 10, 64)
	}
	if err != nil {
		return Entries{}, l.client.unreadable(r, got, err)
	}
	return page, nil
}

// Entries gives the entries from `first` on page after page, up to the last one that can be read when it gets there.
func (l *Ledger) Entries(ctx context.Context, first int64) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for {
			page, err := l.Read(ctx, first, 0)
			if err != nil {
				yield(Entry{}, err)
				return
			}
			for _, entry := range page.Entries {
				if !yield(entry, nil) {
					return
				}
			}
			if len(page.Entries) == 0 {
				return
			}
			first = page.Next
		}
	}
}

// Info describes the ledger. ErrNoSuchLedger.
func (l *Ledger) Info(ctx context.Context) (LedgerInfo, error) {
	return l.shown(ctx, l.request("show", http.MethodGet))
}

// Close closes the ledger: its writer does so if it is a gateway, else it is recovered. It has the same entries for
// all readers from now on.
func (l *Ledger) Close(ctx context.Context) (LedgerInfo, error) {
	r := l.request("close", http.MethodPost, "close")
	r.repeated = always
	return l.shown(ctx, r)
}

// Recover fences whoever writes the ledger, finds its last entry, and closes it.
func (l *Ledger) Recover(ctx context.Context) (LedgerInfo, error) {
	r := l.request("recover", http.MethodPost, "recover")
	r.repeated = always
	return l.shown(ctx, r)
}

// Delete deletes the ledger and its entries. ErrNoSuchLedger.
func (l *Ledger) Delete(ctx context.Context) error {
	_, err := l.client.ask(ctx, l.request("delete", http.MethodDelete), nil, nil)
	return err
}

func (l *Ledger) shown(ctx context.Context, r *request) (LedgerInfo, error) {
	var found LedgerInfo
	_, err := l.client.ask(ctx, r, nil, &found)
	return found, err
}

func (l *Ledger) route() string { return fmt.Sprintf("ledger %d", l.ID) }

func (l *Ledger) request(what, method string, more ...string) *request {
	parts := append([]string{"ledgers", strconv.FormatInt(l.ID, 10)}, more...)
	return &request{op: what + " " + l.route(), method: method, path: pathOf(parts...), route: l.route(),
		header: passwordHeader(l.password)}
}

func passwordHeader(password string) http.Header {
	header := http.Header{}
	if password == "" {
		return header
	}
	header.Set("Buckram-Password", password)
	return header
}
