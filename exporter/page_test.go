package exporter

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

func TestPage(t *testing.T) {
	s := server(t, func(o *Options) { o.Note, o.Hostname = "These GPUs are <b>SIMULATED</b>.", "node17" })
	w := request(s, http.MethodGet, "/")
	for _, text := range []string{`href="metrics"`, `href="metrics/dcgm"`, `href="api/v1/state"`,
		`href="api/v1/history"`, `href="-/ready"`, `href="-/healthy"`,
		"These GPUs are &lt;b&gt;SIMULATED&lt;/b&gt;.", "<title>node17 · gpusteward</title>"} {
		wantAnswer(t, w, http.StatusOK, text)
	}
	for _, text := range []string{"debug/pprof", "api/v1/health", "api/v1/events", `id="events"`} {
		fixture.Equal(t, strings.Contains(w.Body.String(), text), false, "the page has %q", text)
	}
	for _, path := range []string{"/nonexistent", "/metrics/", "/metrics/dcgm/", "/api/v1/", "/-/", "/-/nonexistent",
		"/debug/pprof/", "/page/", "/page/index.html", "/page/0123456789abcdef/app.js",
		"/page/" + pageHash() + "/package.json", "/page/" + pageHash() + "/../app.js"} {
		w := request(s, http.MethodGet, path)
		fixture.If(t, w.Code == http.StatusOK, "%s is served: %s", path, w.Body)
	}
}

// Every link and every file of the page exists, and so does every file that a module imports.
func TestPageLinks(t *testing.T) {
	t.Parallel()
	served := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	s := server(t, func(o *Options) { o.PProf, o.Events, o.Health = true, served, served })
	document := request(s, http.MethodGet, "/").Body.String()
	links := regexp.MustCompile(`(?:href|src)="([^#"][^"]*)"`).FindAllStringSubmatch(document, -1)
	fixture.Need(t, len(links) < 20, false, "the page has the links %q", links)
	for _, l := range links {
		wantAnswer(t, request(s, http.MethodGet, "/"+l[1]), http.StatusOK, "")
		if l[1] != path.Clean(l[1]) && l[1] != "debug/pprof/" || strings.HasPrefix(l[1], "/") {
			t.Errorf("%q is not relative: it breaks behind a proxy with a prefix", l[1])
		}
	}
	imports, uses := 0, map[string][]string{}
	for name, file := range tree().files {
		if path.Ext(name) != ".js" {
			continue
		}
		for _, i := range regexp.MustCompile(`(?ms)^import .*? from "\./([^"]*)";$`).FindAllSubmatch(file.text, -1) {
			imports++
			uses[name] = append(uses[name], string(i[1]))
			fixture.Contains(t, document, "/"+string(i[1])+`"`, "%s imports more: the document", name)
			wantAnswer(t, request(s, http.MethodGet, "/page/"+pageHash()+"/"+string(i[1])), http.StatusOK, "")
		}
	}
	fixture.AtLeast(t, imports, 10, "found imports")
	fixture.EqualSlices(t, fixture.Circle(uses), nil, "modules that import each other in a circle")
}

func TestPageHeaders(t *testing.T) {
	s := server(t, nil)
	app := "/page/" + pageHash() + "/app.js"
	for path, want := range map[string][2]string{
		"/":                                  {"text/html; charset=utf-8", "no-cache"},
		app:                                  {"text/javascript; charset=utf-8", "public, max-age=31536000, immutable"},
		"/page/" + pageHash() + "/style.css": {"text/css; charset=utf-8", "public, max-age=31536000, immutable"},
		"/page/" + pageHash() + "/icon.svg":  {"image/svg+xml", "public, max-age=31536000, immutable"},
		"/page/" + pageHash() + "/vendor/LICENSE": {"text/plain; charset=utf-8", "public, max-age=31536000, immutable"},
	} {
		w := request(s, http.MethodGet, path)
		h := w.Header()
		wantAnswer(t, w, http.StatusOK, "")
		fixture.Equal(t, [2]string{h.Get("Content-Type"), h.Get("Cache-Control")}, want, "%s has the headers", path)
		const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src " +
			"'self'; font-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
		fixture.If(t, h.Get("Content-Security-Policy") != policy || h.Get("X-Content-Type-Options") != "nosniff" ||
			h.Get("Referrer-Policy") != "no-referrer", "%s may do more than it should: %v", path, h)
	}
}

// A browser that has a file is told so, with or without compression.
func TestPageFilesAreKept(t *testing.T) {
	s := server(t, nil)
	tags := map[string]bool{}
	for _, path := range []string{"/", "/page/" + pageHash() + "/app.js"} {
		plain := request(s, http.MethodGet, path)
		for _, encoding := range []string{"identity", "gzip, deflate, br"} {
			w := request(s, http.MethodGet, path, "Accept-Encoding", encoding)
			body := w.Body.Bytes()
			if encoding != "identity" {
				r := fixture.Value(gzip.NewReader(w.Body))(t)
				body = fixture.Value(io.ReadAll(r))(t)
			}
			fixture.If(t, !bytes.Equal(body, plain.Body.Bytes()) || len(body) == 0, "%s as %s differs", path, encoding)
			tag := w.Header().Get("ETag")
			fixture.If(t, tags[tag] || tag == "", "%s as %s has the tag %q of another", path, encoding, tag)
			tags[tag] = true
			again := request(s, http.MethodGet, path, "Accept-Encoding", encoding, "If-None-Match", tag)
			if again.Code != http.StatusNotModified || again.Body.Len() > 0 || again.Header().Get("ETag") != tag {
				t.Errorf("%s asked for again: %d with %d bytes", path, again.Code, again.Body.Len())
			}
			wantAnswer(t, request(s, http.MethodGet, path, "If-None-Match", `"another"`), http.StatusOK, "")
		}
	}
}

// maxTransfer is the most that a browser loads for the page, in bytes, without the states and the history.
const maxTransfer = 60 << 10

func TestPageIsSmallAndItsOwn(t *testing.T) {
	document := request(server(t, nil), http.MethodGet, "/", "Accept-Encoding", "gzip").Body.Len()
	first, later := document, 0
	for name, file := range tree().files {
		if strings.HasPrefix(name, "vendor/") {
			later += len(file.packed)
			continue
		}
		first += len(file.packed)
		for _, bad := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
			"new Function", "http://", "https://", "setAttribute(\"style\""} {
			if bytes.Contains(file.text, []byte(bad)) && name != "icon.svg" { // the icon's namespace looks like a host
				t.Errorf("%s has %s", name, bad)
			}
		}
	}
	text := request(server(t, nil), http.MethodGet, "/").Body.String()
	fixture.If(t, regexp.MustCompile(`(?i)<style|\sstyle=|\son[a-z]+=|<script>|//`).MatchString(text),
		"the document has a script or a style of its own, or names another host")
	t.Logf("the page is %d bytes, and %d more once a card is opened", first, later)
	fixture.If(t, first > maxTransfer || later > maxTransfer,
		"the page is %d bytes and %d more, want at most %d each", first, later, maxTransfer)
}

// The vendored files are those that were fetched: `make page` writes the sums.
func TestVendoredFiles(t *testing.T) {
	text := fixture.Value(os.ReadFile("page/vendor/SHA256SUMS"))(t)
	sums := map[string]string{}
	for line := range strings.Lines(string(text)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		sums[name] = sum
	}
	files, err := fs.ReadDir(os.DirFS("page"), "vendor")
	fixture.If(t, err != nil || len(files) != len(sums)+1, "%d files, %d sums, error %v", len(files), len(sums), err)
	for _, f := range files {
		content := fixture.Value(os.ReadFile("page/vendor/" + f.Name()))(t)
		if sum := sha256.Sum256(content); f.Name() != "SHA256SUMS" && sums[f.Name()] != hex.EncodeToString(sum[:]) {
			t.Errorf("%s is not what was fetched", f.Name())
		}
	}
}

// The history has the same series here and in the browser.
func TestPageKnowsTheSeries(t *testing.T) {
	text := string(tree().files["history.js"].text)
	fixture.If(t, !strings.Contains(text, "const points = 180;") || historyPoints != 180,
		"the page keeps another number of points than %d", historyPoints)
	var names []string
	for _, s := range historySeries {
		names = append(names, s.name+": (g) => ")
	}
	for _, s := range jobSeries {
		names = append(names, s.name+": (w) => ")
	}
	for _, name := range names {
		fixture.Contains(t, text, "\n  "+name, "the page does not continue %s", name)
	}
}
