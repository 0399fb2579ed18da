package buckram

import (
	"context"
	"iter"
	"net/http"
)

// Namespaces gives the names of the namespaces that one may read and that begin with prefix, in order.
func (c *Client) Namespaces(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return paged(func(after string) ([]string, *string, error) {
		var found struct {
			Namespaces []string `json:"namespaces"`
			Next       *string  `json:"next"`
		}
		r := &request{op: "list namespaces", method: http.MethodGet, path: pathOf("namespaces"),
			query: pageQuery(prefix, after)}
		_, err := c.ask(ctx, r, nil, &found)
		return found.Namespaces, found.Next, err
	})
}

// CreateNamespace makes a namespace, with a policy for its streams that may be nil. It takes an administrator.
func (c *Client) CreateNamespace(ctx context.Context, name string, policy map[string]any) error {
	asked := struct {
		Namespace string         `json:"namespace"`
		Policy    map[string]any `json:"policy,omitempty"`
	}{name, policy}
	r := &request{op: "create namespace " + name, method: http.MethodPost, path: pathOf("namespaces")}
	_, err := c.ask(ctx, r, asked, nil)
	return err
}

// DeleteNamespace deletes a namespace without streams. It takes an administrator.
func (c *Client) DeleteNamespace(ctx context.Context, name string) error {
	r := &request{op: "delete namespace " + name, method: http.MethodDelete, path: pathOf("namespaces", name)}
	_, err := c.ask(ctx, r, nil, nil)
	return err
}

// Session says who one is, for the gateway.
type Session struct {
	// Principal is such as "token:alice".
	Principal     string `json:"principal"`
	Administrator bool   `json:"administrator"`
	// Changes: one may change something at all.
	Changes bool `json:"changes"`
	// Tokens: the gateway asks for tokens.
	Tokens bool `json:"tokens"`
}

// Session asks the gateway who one is: a quick look whether address and token are right.
func (c *Client) Session(ctx context.Context) (Session, error) {
	var found Session
	r := &request{op: "ask who one is", method: http.MethodGet, path: pathOf("session")}
	_, err := c.ask(ctx, r, nil, &found)
	return found, err
}
