package buckram

import (
	"fmt"
	"os"
	"strings"
)

const mostTokenBytes = 64 << 10

// tokenSource gives the token of a request; empty where there is none.
type tokenSource func() (string, error)

func fixedToken(token string) (tokenSource, error) {
	token, err := checkedToken(token, "the token")
	return func() (string, error) { return token, nil }, err
}

// tokenFile reads the file for each request, so that a token that was renewed counts at once.
func tokenFile(path string) tokenSource {
	return func() (string, error) {
		facts, err := os.Stat(path)
		if err != nil {
			return "", fmt.Errorf("the file with the token: %w", err)
		}
		if facts.Size() > mostTokenBytes {
			return "", fmt.Errorf("the file %s has %d bytes, a token has at most %d: name the file with the token",
				path, facts.Size(), mostTokenBytes)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("the file with the token: %w", err)
		}
		return checkedToken(string(text), "the token in "+path)
	}
}

// checkedToken is the token without the white space around it. It never shows the token.
func checkedToken(text, what string) (string, error) {
	token := strings.TrimSpace(text)
	if token == "" {
		return "", fmt.Errorf("%s is empty: `buckram token create` makes one", what)
	}
	for _, one := range token {
		if one <= ' ' || one > '~' {
			return "", fmt.Errorf("%s has characters that no token has: give what `buckram token create` printed", what)
		}
	}
	return token, nil
}
