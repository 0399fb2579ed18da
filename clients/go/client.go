package buckram

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// Environment variables that Open looks at.
const (
	// EnvGateway has addresses of gateways, for Open("").
	EnvGateway = "BUCKRAM_GATEWAY"
	// EnvToken has a token. WithToken and WithTokenFile go before it.
	EnvToken = "BUCKRAM_TOKEN"
	// EnvTokenFile names a file with a token, where EnvToken is not set.
	EnvTokenFile = "BUCKRAM_AUTH_TOKEN_FILE"
	// EnvCA names a file with the certificates of authorities. WithCA goes before it.
	EnvCA = "BUCKRAM_CA"
)

const (
	defaultTimeout  = 60 * time.Second
	defaultAttempts = 6
	longestWait     = 10 * time.Second
)

// Client is a client of the gateways of one cluster. Open makes it, Close ends its idle connections.
type Client struct {
	http     *http.Client
	events   func(credit int) *http.Client
	token    tokenSource
	timeout  time.Duration
	attempts int
	log      *slog.Logger
	gateways *gateways
}

type settings struct {
	client   *http.Client
	token    tokenSource
	ca       string
	timeout  time.Duration
	attempts int
	log      *slog.Logger
}

// Option changes how Open makes a client.
type Option func(*settings) error

// WithToken gives the token that each request carries.
func WithToken(token string) Option {
	return func(s *settings) (err error) {
		s.token, err = fixedToken(token)
		return err
	}
}

// WithTokenFile names a file with the token. It is read for each request, so that a renewed token counts at once.
func WithTokenFile(path string) Option {
	return func(s *settings) error {
		s.token = tokenFile(path)
		_, err := s.token()
		return err
	}
}

// WithCA names a PEM file with the certificates of those who may vouch for gateways, instead of the system's.
func WithCA(path string) Option {
	return func(s *settings) error { s.ca = path; return nil }
}

// WithHTTPClient sends requests with a client of one's own. Its CheckRedirect and Timeout are not used; WithCA is not
// for it. Unless its Transport is an *http.Transport, the credit of tails is what that buffers.
func WithHTTPClient(client *http.Client) Option {
	return func(s *settings) error {
		if client == nil {
			return errors.New("WithHTTPClient needs a client")
		}
		s.client = client
		return nil
	}
}

// WithTimeout says how long one attempt of a request may take; the default is a minute. A gateway answers an append
// within 40 seconds, so with less some outcomes stay unknown. Tails have no such limit.
func WithTimeout(limit time.Duration) Option {
	return func(s *settings) error {
		if limit <= 0 {
			return fmt.Errorf("WithTimeout(%v): needs more than 0", limit)
		}
		s.timeout = limit
		return nil
	}
}

// WithAttempts says how often a request may be sent, where it is safe to send it again; the default is 6, 1 never
// sends anything again.
func WithAttempts(most int) Option {
	return func(s *settings) error {
		if most < 1 || most > 100 {
			return fmt.Errorf("WithAttempts(%d): needs a number from 1 to 100", most)
		}
		s.attempts = most
		return nil
	}
}

// WithLogger says where it is noted that a request is sent again, or a tail goes on. The default is nowhere.
func WithLogger(log *slog.Logger) Option {
	return func(s *settings) error {
		if log == nil {
			return errors.New("WithLogger needs a logger")
		}
		s.log = log
		return nil
	}
}

// Open makes a client of a cluster's gateways, given by their addresses with commas between them, such as
// "https://10.0.0.7:8443,https://10.0.0.8:8443"; "" takes them from BUCKRAM_GATEWAY. Nothing is sent yet.
func Open(addresses string, options ...Option) (*Client, error) {
	client, err := open(addresses, options)
	if err != nil {
		return nil, fmt.Errorf("buckram.Open: %w", err)
	}
	return client, nil
}

func open(addresses string, options []Option) (*Client, error) {
	s := settings{timeout: defaultTimeout, attempts: defaultAttempts, log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	for _, option := range options {
		if err := option(&s); err != nil {
			return nil, err
		}
	}
	if addresses == "" {
		addresses = os.Getenv(EnvGateway)
	}
	bases, err := parseAddresses(addresses)
	if err != nil {
		return nil, err
	}
	if s.token == nil {
		if s.token, err = tokenOfEnvironment(); err != nil {
			return nil, err
		}
	}
	sender := s.client
	if sender == nil {
		if sender, err = defaultHTTP(s.ca); err != nil {
			return nil, err
		}
	} else if s.ca != "" {
		return nil, errors.New("WithCA and WithHTTPClient exclude each other: the client has its own certificates")
	}
	own := *sender
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	own.Timeout = 0
	return &Client{
		http:     &own,
		events:   func(credit int) *http.Client { return withCredit(&own, credit) },
		token:    s.token,
		timeout:  s.timeout,
		attempts: s.attempts,
		log:      s.log,
		gateways: newGateways(bases),
	}, nil
}

// Close ends the connections that nobody uses.
func (c *Client) Close() { c.http.CloseIdleConnections() }

func parseAddresses(text string) ([]string, error) {
	var found []string
	for _, one := range strings.Split(text, ",") {
		if one = strings.TrimRight(strings.TrimSpace(one), "/"); one == "" {
			continue
		}
		base, err := url.Parse(one)
		if err != nil || (base.Scheme != "http" && base.Scheme != "https") || base.Host == "" || base.User != nil ||
			base.RawQuery != "" || base.Fragment != "" {
			return nil, fmt.Errorf("%q is no address of a gateway: needs one such as http://127.0.0.1:8080", one)
		}
		found = append(found, one)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no address of a gateway is given: give one such as http://127.0.0.1:8080, or set %s",
			EnvGateway)
	}
	return found, nil
}

func tokenOfEnvironment() (tokenSource, error) {
	if token := os.Getenv(EnvToken); token != "" {
		return fixedToken(token)
	}
	if path := os.Getenv(EnvTokenFile); path != "" {
		source := tokenFile(path)
		_, err := source()
		return source, err
	}
	return func() (string, error) { return "", nil }, nil
}

func defaultHTTP(ca string) (*http.Client, error) {
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 64,
		IdleConnTimeout:     30 * time.Second,
		DisableCompression:  true,
	}
	if ca == "" {
		ca = os.Getenv(EnvCA)
	}
	if ca != "" {
		text, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("the certificates of authorities: %w", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s has no certificate in PEM form", ca)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	return &http.Client{Transport: transport}, nil
}

// withCredit is a client whose connections take so many bytes that nobody has read; what comes then waits with the
// sender. Each is for one answer.
func withCredit(of *http.Client, credit int) *http.Client {
	transport, ok := of.Transport.(*http.Transport)
	if !ok {
		return of
	}
	own := transport.Clone()
	own.DisableKeepAlives = true
	own.ReadBufferSize = min(credit, 64<<10)
	dial := own.DialContext
	if dial == nil {
		dial = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
	}
	own.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if limited, ok := conn.(interface{ SetReadBuffer(int) error }); ok && err == nil {
			err = limited.SetReadBuffer(credit)
		}
		return conn, err
	}
	limited := *of
	limited.Transport = own
	return &limited
}
