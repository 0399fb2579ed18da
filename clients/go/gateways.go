package buckram

import "sync"

// mostRoutes bounds what is remembered of streams and ledgers; beyond it everything is forgotten, and found again.
const mostRoutes = 10_000

// process is a gateway at an address. Its id is another one after each start; "" where it is not known yet.
type process struct{ base, id string }

// gateways knows the gateways of a cluster: which address is asked first, which one has a stream, who answers there.
type gateways struct {
	mu     sync.Mutex
	bases  []string
	first  int
	routes map[string]string
	ids    map[string]string
}

func newGateways(bases []string) *gateways {
	return &gateways{bases: bases, routes: map[string]string{}, ids: map[string]string{}}
}

// choose returns the gateway for a request that is about `route`, which may be "".
func (g *gateways) choose(route string) process {
	g.mu.Lock()
	defer g.mu.Unlock()
	base, known := g.routes[route]
	if !known {
		base = g.bases[g.first]
	}
	return process{base, g.ids[base]}
}

// at returns the gateway at an address.
func (g *gateways) at(base string) process {
	g.mu.Lock()
	defer g.mu.Unlock()
	return process{base, g.ids[base]}
}

// has notes that a gateway has the writer of `route`.
func (g *gateways) has(route, base string) {
	if route == "" {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.routes) >= mostRoutes {
		clear(g.routes)
	}
	g.routes[route] = base
}

// answered notes who answers at an address.
func (g *gateways) answered(base, id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.ids) >= mostRoutes {
		clear(g.ids)
	}
	g.ids[base] = id
}

// failed notes that nobody serves at an address: the next one is asked, and no route leads there.
func (g *gateways) failed(base string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.ids, base)
	for route, to := range g.routes {
		if to == base {
			delete(g.routes, route)
		}
	}
	if g.bases[g.first] == base {
		g.first = (g.first + 1) % len(g.bases)
	}
}
