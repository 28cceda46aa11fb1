package exporter

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/prometheus/common/expfmt"
	"golang.org/x/sync/singleflight"
)

// Prometheus sends its timeout in a header; other clients have the default. A
// client has sendTimeout more to receive the answer.
const (
	scrapeTimeout   = "X-Prometheus-Scrape-Timeout-Seconds"
	defaultPatience = 10 * time.Second
	sendTimeout     = 10 * time.Second
)

// formats are the formats of the metrics, the best first.
var formats = map[string][]expfmt.Format{
	"/metrics":      {expfmt.FmtOpenMetrics_1_0_0, expfmt.FmtOpenMetrics_0_0_1, expfmt.FmtProtoDelim, expfmt.FmtText},
	"/metrics/dcgm": {expfmt.FmtProtoDelim, expfmt.FmtText}, // in OpenMetrics its counters would end in _total
}

// scrapes answers scrapes from cached responses. The first scrape renders a
// response. While clients ask for it, it is rendered again after each interval
// of the readers. A scrape thus costs a copy of bytes, and the agent's cost
// does not grow with the number of clients. The cache has at most 16 responses:
// a scrape of chosen names gets a part of one.
type scrapes struct {
	render   http.Handler
	interval func() time.Duration // how often readings change, and the maximum age of a response; 0: no cache

	flight singleflight.Group
	mu     sync.Mutex // guards what follows
	cache  map[string]*cachedResponse
}

// A cachedResponse is a rendered answer. Only its field read changes.
type cachedResponse struct {
	http.ResponseWriter // nil; header, status and body are below
	request             *http.Request
	header              http.Header
	status              int
	body                bytes.Buffer
	packer              *gzip.Writer  // to body, while it is rendered; nil: not compressed
	parts               func() []part // of metrics that are not compressed
	made                time.Time
	read                bool // since it was made
}

func (p *cachedResponse) Header() http.Header    { return p.header }
func (p *cachedResponse) WriteHeader(status int) { p.status = status }
func (p *cachedResponse) Write(b []byte) (int, error) {
	if p.packer != nil {
		return p.packer.Write(b)
	}
	return p.body.Write(b)
}

func (p *cachedResponse) send(w http.ResponseWriter) {
	for k, v := range p.header {
		w.Header()[k] = v
	}
	w.Header().Set("Content-Length", strconv.Itoa(p.body.Len()))
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(sendTimeout)) // not every writer has one
	w.WriteHeader(p.status)
	_, _ = w.Write(p.body.Bytes()) // the client has left: nobody to tell
}

// canonical returns a request with the parts of r that affect the answer.
// Requests with the same key have the same answer. The names are the families
// that r chooses from an uncompressed response; nil means the whole response.
func canonical(r *http.Request) (same *http.Request, key string, names []string) {
	same = &http.Request{Method: http.MethodGet, URL: &url.URL{Path: r.URL.Path}, Header: http.Header{}}
	if offered := formats[r.URL.Path]; offered != nil {
		// none of our names needs escaping
		format, _, _ := strings.Cut(string(expfmt.NegotiateAccept(r.Header, offered...)), "; escaping=")
		same.Header.Set("Accept", format)
		names = r.URL.Query()["name[]"]
	}
	if names == nil && acceptsGzip(r) {
		same.Header.Set("Accept-Encoding", "gzip")
	}
	return same, same.URL.Path + "\x00" + same.Header.Get("Accept") + "\x00" + same.Header.Get("Accept-Encoding"), names
}

// ServeHTTP answers one scrape before the scraper's timeout: with a whole
// response or with 503.
func (s *scrapes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	patience := defaultPatience
	if v := r.Header.Get(scrapeTimeout); v != "" {
		seconds, err := strconv.ParseFloat(v, 64)
		if err != nil || !(seconds > 0 && seconds < 3600) {
			http.Error(w, fmt.Sprintf("%s: %q is not a number of seconds between 0 and 3600", scrapeTimeout, v),
				http.StatusBadRequest)
			return
		}
		patience = time.Duration(seconds * .95 * float64(time.Second))
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	p := s.answer(ctx, r)
	if p == nil { // late, or the scraper has left
		http.Error(w, "the scrape took longer than the scraper waits", http.StatusServiceUnavailable)
		return
	}
	p.send(w) // without a lock: a client that does not read blocks nobody
}

// answer returns the response to r; nil if ctx ends first.
func (s *scrapes) answer(ctx context.Context, r *http.Request) *cachedResponse {
	same, k, names := canonical(r)
	p := s.fresh(k)
	if p == nil {
		select {
		case result := <-s.flight.DoChan(k, func() (any, error) { return s.make(k, same), nil }):
			p = result.Val.(*cachedResponse)
		case <-ctx.Done():
			return nil
		}
	}
	if names != nil {
		return p.chosen(names)
	}
	return p
}

// fresh returns the cached response unless it is older than an interval.
func (s *scrapes) fresh(k string) *cachedResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.cache[k]
	if p == nil || time.Since(p.made) > s.interval()+lag(s.interval()) {
		return nil
	}
	p.read = true
	return p
}

// make renders a response, and caches it if it is worth keeping.
func (s *scrapes) make(k string, r *http.Request) *cachedResponse {
	size := 0
	if before := s.stored(k); before != nil {
		size = before.body.Len() * 9 / 8
	}
	p := rendered(s.render, r, size)
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.status == http.StatusOK && s.interval() > 0 {
		s.cache[k] = p
	}
	return p
}

// compressed returns a handler of h's answers, which it compresses for clients
// that accept that.
func compressed(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { rendered(h, r, 0).send(w) })
}

// rendered returns h's answer to r; size is its expected size in bytes.
func rendered(h http.Handler, r *http.Request, size int) *cachedResponse {
	p := &cachedResponse{request: r, header: http.Header{}, status: http.StatusOK, made: time.Now()}
	p.body.Grow(size)
	p.parts = sync.OnceValue(p.split)
	p.header.Set("Vary", "Accept-Encoding")
	if acceptsGzip(r) {
		p.header.Set("Content-Encoding", "gzip")
		p.packer = gzips.Get().(*gzip.Writer)
		p.packer.Reset(&p.body)
		defer func() { gzips.Put(p.packer); p.packer = nil }()
		defer func() { _ = p.packer.Close() }() // to memory
	}
	h.ServeHTTP(p, r)
	return p
}

// gzips holds writers. Level 1 takes a sixth of the time of the usual level 6,
// and its output is a seventh larger. Its tables are a quarter of level 3's.
var gzips = sync.Pool{New: func() any {
	w, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed) // the level exists
	return w
}}

func (s *scrapes) stored(k string) *cachedResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cache[k]
}

// forget drops every cached response: they are out of date.
func (s *scrapes) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.cache)
}

// lag is the delay after an interval until its readings are there.
func lag(interval time.Duration) time.Duration { return interval / 10 }

// run renders, shortly after each interval of the readers, the responses that
// clients have read since the last time, and forgets the others.
func (s *scrapes) run(ctx context.Context) error {
	for {
		interval := s.interval()
		if interval == 0 {
			interval = time.Second
		}
		now := time.Now()
		t := time.NewTimer(now.Truncate(interval).Add(interval + lag(interval)).Sub(now))
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
		for k, p := range s.renewable() {
			s.make(k, p.request)
		}
	}
}

// renewable returns the responses that clients have read, and forgets the
// others.
func (s *scrapes) renewable() map[string]*cachedResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	read := map[string]*cachedResponse{}
	for k, p := range s.cache {
		if p.read {
			read[k] = p
		} else {
			delete(s.cache, k)
		}
	}
	return read
}
