package exporter

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

// Prometheus says in a header how long it waits; others wait this long.
const (
	scrapeTimeout   = "X-Prometheus-Scrape-Timeout-Seconds"
	defaultPatience = 10 * time.Second
)

// maxPages bounds the pages kept: one for each way of asking that is in use.
const maxPages = 8

// scrapes answers scrapes from pages that are rendered as seldom as the
// readings change. The first scrape renders its page; as long as somebody
// reads it, it is rendered again behind each beat of the readers, so that a
// scrape costs a copy of bytes and the agent's cost does not grow with the
// number of its readers.
type scrapes struct {
	render http.Handler
	beat   func() time.Duration // how often readings change, and how old a page may be; 0: keep none

	flight  singleflight.Group
	mu      sync.Mutex // guards what follows
	most    int        // scrapes that may wait for a page
	waiting int
	kept    map[string]*page
}

// A page is a rendered answer. Its fields but read do not change.
type page struct {
	http.ResponseWriter // nil; header, status and body are here
	request             *http.Request
	header              http.Header
	status              int
	body                bytes.Buffer
	made                time.Time
	read                bool // since it was made
}

func (p *page) Header() http.Header         { return p.header }
func (p *page) WriteHeader(status int)      { p.status = status }
func (p *page) Write(b []byte) (int, error) { return p.body.Write(b) }

func (p *page) send(w http.ResponseWriter) {
	for k, v := range p.header {
		w.Header()[k] = v
	}
	w.Header().Set("Content-Length", strconv.Itoa(p.body.Len()))
	w.WriteHeader(p.status)
	_, _ = w.Write(p.body.Bytes()) // whoever asked has left: nobody to tell
}

// key tells apart the requests whose answers differ.
func key(r *http.Request) string {
	return r.URL.Path + "\x00" + r.Header.Get("Accept") + "\x00" + r.Header.Get("Accept-Encoding") + "\x00" + r.URL.RawQuery
}

// ServeHTTP answers one scrape, before the scraper stops waiting: with a page
// or with 503, whole or not at all.
func (s *scrapes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	patience := defaultPatience
	if v := r.Header.Get(scrapeTimeout); v != "" {
		seconds, err := strconv.ParseFloat(v, 64)
		if err != nil || !(seconds > 0 && seconds < 3600) {
			http.Error(w, fmt.Sprintf("%s: %q is not a number of seconds between 0 and 3600", scrapeTimeout, v), http.StatusBadRequest)
			return
		}
		patience = time.Duration(seconds * .95 * float64(time.Second))
	}
	k := key(r)
	if p := s.page(k); p != nil {
		p.send(w)
		return
	}
	if n, ok := s.wait(); !ok {
		http.Error(w, fmt.Sprintf("as many scrapes as may wait (%d) are waiting; try again later", n), http.StatusServiceUnavailable)
		return
	}
	defer s.done()
	again := r.Clone(context.WithoutCancel(r.Context()))
	made := s.flight.DoChan(k, func() (any, error) { return s.make(k, again), nil })
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case result := <-made:
		result.Val.(*page).send(w)
	case <-late.C:
		http.Error(w, "the scrape took longer than the scraper waits", http.StatusServiceUnavailable)
	case <-r.Context().Done():
	}
}

// wait takes one of the places of those who wait, if there is one, and
// returns how many there are.
func (s *scrapes) wait() (places int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting >= s.most {
		return s.most, false
	}
	s.waiting++
	return s.most, true
}

func (s *scrapes) done() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting--
}

// page returns the kept page, unless it is older than a beat.
func (s *scrapes) page(k string) *page {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.kept[k]
	if p == nil || time.Since(p.made) > s.beat()+lag(s.beat()) {
		return nil
	}
	p.read = true
	return p
}

// make renders a page and keeps it, if it is one worth keeping.
func (s *scrapes) make(k string, r *http.Request) *page {
	p := &page{request: r, header: http.Header{}, status: http.StatusOK, made: time.Now()}
	if before := s.keptPage(k); before != nil {
		p.body.Grow(before.body.Len() * 9 / 8)
	}
	s.render.ServeHTTP(p, r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, again := s.kept[k]; p.status == http.StatusOK && s.beat() > 0 && (again || len(s.kept) < maxPages) {
		s.kept[k] = p
	}
	return p
}

func (s *scrapes) keptPage(k string) *page {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept[k]
}

// forget drops every page: what they say is no longer so.
func (s *scrapes) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.kept)
}

// lag is how long after a beat its readings are there.
func lag(beat time.Duration) time.Duration { return beat / 10 }

// run renders again, a little after each beat, the pages that were read since
// the beat before, and forgets the others.
func (s *scrapes) run(ctx context.Context) error {
	for {
		beat := s.beat()
		if beat == 0 {
			beat = time.Second
		}
		now := time.Now()
		t := time.NewTimer(now.Truncate(beat).Add(beat + lag(beat)).Sub(now))
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

// renewable returns the pages that were read, and forgets the others.
func (s *scrapes) renewable() map[string]*page {
	s.mu.Lock()
	defer s.mu.Unlock()
	read := map[string]*page{}
	for k, p := range s.kept {
		if p.read {
			read[k] = p
		} else {
			delete(s.kept, k)
		}
	}
	return read
}
