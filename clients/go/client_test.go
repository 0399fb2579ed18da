package buckram

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestAddresses(t *testing.T) {
	found, err := parseAddresses(" http://a:1/ , https://b/under/")
	if err != nil || len(found) != 2 || found[0] != "http://a:1" || found[1] != "https://b/under" {
		t.Fatal(found, err)
	}
	for _, bad := range []string{"", ",", "a:1", "ftp://a", "http://", "http://user:pw@a", "http://a?b=c", "127.0.0.1:80"} {
		if found, err := parseAddresses(bad); err == nil {
			t.Error(bad, found)
		}
	}
	t.Setenv(EnvGateway, "http://c:3")
	client, err := Open("")
	if err != nil || client.gateways.bases[0] != "http://c:3" {
		t.Fatal(err)
	}
}

func TestBadOptionsAreRefused(t *testing.T) {
	for _, option := range []Option{
		WithToken(""), WithToken("a\nb"), WithTokenFile("/nowhere"), WithTimeout(0), WithAttempts(0), WithLogger(nil),
		WithHTTPClient(nil), WithCA("/nowhere"),
	} {
		if _, err := Open("http://a", option); err == nil || !strings.HasPrefix(err.Error(), "buckram.Open: ") {
			t.Error(err)
		}
	}
	if _, err := Open("http://a", WithCA("x"), WithHTTPClient(http.DefaultClient)); err == nil {
		t.Error("the certificates would not be used")
	}
}

func TestTokens(t *testing.T) {
	gateway := newFake(t, "a", say(`{}`))
	path := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("of-file\n")
	asked := func(client *Client) string {
		if _, err := client.Session(within(t, 30*time.Second)); err != nil {
			t.Fatal(err)
		}
		all := gateway.requests()
		return all[len(all)-1].header.Get("Authorization")
	}
	renewed := opened(t, gateway.URL, WithTokenFile(path))
	if got := asked(renewed); got != "Bearer of-file" {
		t.Error(got)
	}
	write("renewed")
	if got := asked(renewed); got != "Bearer renewed" {
		t.Error(got)
	}
	write(strings.Repeat("x", mostTokenBytes+1))
	if _, err := renewed.Session(within(t, 30*time.Second)); err == nil || strings.Contains(err.Error(), "xxx") {
		t.Error(err)
	}
	write("of-file")
	none := opened(t, gateway.URL)
	if got := asked(none); got != "" {
		t.Error(got)
	}
	t.Setenv(EnvTokenFile, path)
	ofFile, err := Open(gateway.URL)
	if err != nil || asked(ofFile) != "Bearer of-file" {
		t.Error(err)
	}
	t.Setenv(EnvToken, "of-variable")
	ofVariable, err := Open(gateway.URL)
	if err != nil || asked(ofVariable) != "Bearer of-variable" {
		t.Error(err)
	}
	given, err := Open(gateway.URL, WithToken(" given "))
	if err != nil || asked(given) != "Bearer given" {
		t.Error(err)
	}
}

func TestAuthoritiesOfAFile(t *testing.T) {
	server := httptest.NewTLSServer(say(`{"principal":"anybody"}`))
	defer server.Close()
	path := filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, client := range []*Client{opened(t, server.URL, WithCA(path)), opened(t, server.URL, WithHTTPClient(server.Client()))} {
		if found, err := client.Session(within(t, 30*time.Second)); err != nil || found.Principal != "anybody" {
			t.Error(err)
		}
	}
}

func TestWhatIsRememberedHasALimit(t *testing.T) {
	known := newGateways([]string{"http://a"})
	for i := range 3 * mostRoutes {
		known.has(strings.Repeat("x", i%7)+string(rune(i)), "http://b")
	}
	if len(known.routes) > mostRoutes {
		t.Error(len(known.routes))
	}
}
