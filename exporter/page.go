package exporter

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
)

// pageFiles are the live page: a document, its style, its modules, and the
// chart library that `make page` fetches.
//
//go:embed page/*.html page/*.css page/*.js page/*.svg page/vendor/*.js page/vendor/*.css page/vendor/LICENSE
var pageFiles embed.FS

// pagePolicy allows the page only its own files: no other host, and no script
// or style within the document.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; " +
	"connect-src 'self'; font-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// pageTypes are the media types by file extension.
var pageTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
	".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml", "": "text/plain; charset=utf-8",
}

// livePage serves the page at / and its files below /page/HASH/. HASH covers
// all files, so the content at a path never changes.
type livePage struct {
	document asset
	files    func() pageTree // made for the first reader; many agents have none
}

// A pageTree has the files by path, and their hash.
type pageTree struct {
	hash  string
	files map[string]asset
}

// An asset is a file in the form in which it is sent.
type asset struct {
	kind, tag    string
	cache        string
	text, packed []byte
}

// tree returns the files, compressed.
var tree = sync.OnceValue(func() pageTree {
	t := pageTree{hash: pageHash(), files: map[string]asset{}}
	_ = fs.WalkDir(pageFiles, "page", func(name string, e fs.DirEntry, _ error) error { // memory, which does not fail
		if !e.IsDir() && path.Ext(name) != ".html" {
			text, _ := pageFiles.ReadFile(name)
			t.files[strings.TrimPrefix(name, "page/")] = newAsset(path.Ext(name),
				"public, max-age=31536000, immutable", text)
		}
		return nil
	})
	return t
})

// pageHash returns the name of this version of the files.
var pageHash = sync.OnceValue(func() string {
	sum := sha256.New()
	_ = fs.WalkDir(pageFiles, "page", func(name string, e fs.DirEntry, _ error) error { // memory, which does not fail
		if !e.IsDir() {
			text, _ := pageFiles.ReadFile(name)
			fmt.Fprintf(sum, "%s\x00%d\x00%s", name, len(text), text)
		}
		return nil
	})
	return hex.EncodeToString(sum.Sum(nil)[:8])
})

// newAsset returns text as an asset.
func newAsset(end, cache string, text []byte) asset {
	sum := sha256.Sum256(text)
	var packed bytes.Buffer
	w, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression) // the level is one
	_, _ = w.Write(text)                                       // to memory
	_ = w.Close()
	return asset{kind: pageTypes[end], tag: hex.EncodeToString(sum[:8]), cache: cache, text: text,
		packed: packed.Bytes()}
}

// newLivePage returns the page of an agent with o. An error comes from the
// document's template.
func newLivePage(o Options) (*livePage, error) {
	document, err := template.ParseFS(pageFiles, "page/index.html")
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	err = document.Execute(&text, struct {
		Files, Hostname, Note string
		Events, Health, PProf bool
		Modules               []string // imported by the first one; preloaded, so that all arrive at once
	}{"page/" + pageHash(), o.Hostname, o.Note, o.Events != nil, o.Health != nil, o.PProf, modules()})
	if err != nil {
		return nil, err
	}
	return &livePage{document: newAsset(".html", "no-cache", text.Bytes()), files: tree}, nil
}

// modules returns the names of the page's modules, without those that a
// document names itself.
func modules() (names []string) {
	all, _ := fs.Glob(pageFiles, "page/*.js") // a good pattern
	for _, name := range all {
		if name = path.Base(name); !slices.Contains([]string{"app.js", "fleet.js", "theme.js"}, name) {
			names = append(names, name)
		}
	}
	return names
}

// ServeHTTP answers with the document or one of its files.
func (p *livePage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/" {
		p.document.ServeHTTP(w, r)
		return
	}
	t := p.files()
	file, ok := t.files[strings.TrimPrefix(r.URL.Path, "/page/"+t.hash+"/")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	file.ServeHTTP(w, r)
}

// ServeHTTP sends the file, or tells the client that it already has it.
func (a asset) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h, tag, text := w.Header(), a.tag, a.text
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", a.cache)
	h.Set("Vary", "Accept-Encoding")
	if acceptsGzip(r) {
		h.Set("Content-Encoding", "gzip")
		tag, text = tag+"-gzip", a.packed
	}
	h.Set("ETag", `"`+tag+`"`)
	if strings.Contains(r.Header.Get("If-None-Match"), `"`+tag+`"`) {
		h.Del("Content-Encoding")
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Type", a.kind)
	h.Set("Content-Length", fmt.Sprint(len(text)))
	_, _ = w.Write(text) // the client has left: nobody to tell
}
