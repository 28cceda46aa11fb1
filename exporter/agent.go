package exporter

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// An Agent is one that a command asks.
type Agent struct {
	RuntimeDir string       // has its control socket, which nobody else can impersonate
	URL        string       // in place of the socket
	Client     *http.Client // for the URL; nil: one without a certificate or a password
}

// errRefused is an answer other than the requested one.
var errRefused = errors.New("refused")

// A statusError is an answer with a status other than 200.
type statusError struct {
	code             int
	by, status, said string
}

func (r statusError) Error() string {
	return fmt.Sprintf("%v by %s: %s: %s", errRefused, r.by, r.status, r.said)
}
func (statusError) Unwrap() error { return errRefused }

// maxAnswer is the most that is read of an answer, in bytes.
const maxAnswer = 16 << 20

// patience is the time that an agent has to answer from memory.
const patience = 3 * time.Second

// Ask returns the agent's answer to a GET of path. It waits for at most 3 s. Its
// errors are shown to operators.
func (a Agent) Ask(ctx context.Context, path string) ([]byte, error) {
	if a.URL == "" {
		socket := filepath.Join(a.RuntimeDir, ControlSocket)
		text, err := get(ctx, overSocket(socket), "http://agent"+path)
		if err = atSocket(err, socket, "ask it"); errors.Is(err, fs.ErrPermission) {
			err = fmt.Errorf("%w; --url=%s works for everybody", err, DefaultURL)
		}
		return text, err
	}
	if err := whole(a.URL); err != nil {
		return nil, err
	}
	text, err := get(ctx, cmp.Or(a.Client, http.DefaultClient), strings.TrimSuffix(a.URL, "/")+path)
	var r statusError
	if errors.As(err, &r) && r.code == http.StatusNotFound {
		err = fmt.Errorf("%w: is --url the address of an agent? A simulated fleet has its hosts at /hosts/NAME", err)
	}
	return text, err
}

// ErrNoAgent is why a socket could not be asked: nobody listens there.
var ErrNoAgent = errors.New("no agent answers")

// atSocket returns the error of a client of a socket for an operator, who wanted to do something.
func atSocket(err error, socket, do string) error {
	var r statusError
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		text := fmt.Sprintf("%v at %s: is gpusteward running, with this --runtime.dir?", ErrNoAgent, socket)
		if !strings.HasSuffix(socket, "/"+ControlSocket) {
			text = fmt.Sprintf("no enforcer answers at %s: is it running, with this --runtime.dir and enforcer.enabled: true?", socket)
		}
		return unreached{text, errors.Join(ErrNoAgent, err)}
	case errors.Is(err, fs.ErrPermission):
		return unreached{fmt.Sprintf("only root and the agent's own user may %s: no permission on %s", do, socket), err}
	case errors.Is(err, context.DeadlineExceeded):
		return unreached{"the agent at " + socket + " does not answer", err}
	case errors.As(err, &r) && r.said != "":
		return unreached{r.said, err}
	}
	return err
}

// An unreached socket's error is what an operator can do, not the dialogue in HTTP.
type unreached struct {
	said  string
	cause error
}

func (u unreached) Error() string { return u.said }
func (u unreached) Unwrap() error { return u.cause }

// AskCrashes returns the answer of the enforcer to a GET at its socket for crashes.
func AskCrashes(ctx context.Context, runtimeDir, path string) ([]byte, error) {
	socket := filepath.Join(runtimeDir, CrashSocket)
	text, err := get(ctx, overSocket(socket), "http://agent"+path)
	return text, atSocket(err, socket, "ask it")
}

// ProfilePath is the path of profiles at the enforcer's socket for crashes. A GET has the arguments pid or workload,
// seconds, and spans, which is 1 or 0.
const ProfilePath = "/profile"

// profilePatience is the time that the enforcer has to answer once a profile has ended.
const profilePatience = 15 * time.Second

// A ProfileRequest selects a program: by its PID or, if that is 0, by its workload.
type ProfileRequest struct {
	PID      int
	Workload string
	Seconds  int
	Spans    bool
}

// AskProfile returns a profile as JSON, once the enforcer has observed the program.
func AskProfile(ctx context.Context, runtimeDir string, p ProfileRequest) ([]byte, error) {
	arguments := url.Values{"seconds": {strconv.Itoa(p.Seconds)}, "spans": {"0"}}
	if p.Spans {
		arguments.Set("spans", "1")
	}
	if p.PID != 0 {
		arguments.Set("pid", strconv.Itoa(p.PID))
	} else {
		arguments.Set("workload", p.Workload)
	}
	wait := time.Duration(p.Seconds)*time.Second + profilePatience
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	socket := filepath.Join(runtimeDir, CrashSocket)
	text, err := getPatiently(ctx, overSocket(socket), "http://agent"+ProfilePath+"?"+arguments.Encode())
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("the enforcer does not answer within %v: %w", wait, err)
	case len(text) == maxAnswer:
		return nil, fmt.Errorf("the answer has more than %d MiB: take fewer --seconds", maxAnswer>>20)
	}
	return text, atSocket(err, socket, "ask it")
}

// whole returns an error if the URL of a server has no scheme.
func whole(url string) error {
	if !strings.Contains(url, "://") {
		return fmt.Errorf("the address lacks http:// or https://, as in http://%s", url)
	}
	return nil
}

func get(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return getPatiently(ctx, client, url)
}

// getPatiently is get without a limit of its own to the time.
func getPatiently(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	answer, err := client.Do(r)
	if err != nil {
		return nil, remedied(err)
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	switch answer.StatusCode {
	case http.StatusOK:
		return text, err
	case http.StatusUnauthorized, http.StatusForbidden:
		return nil, fmt.Errorf("%w by %s, which requires authentication: as root the command uses the control socket "+
			"instead; otherwise %s", errRefused, r.URL.Redacted(), authenticate)
	}
	said := fmt.Sprintf("%.200s", printable(string(bytes.TrimSpace(text))))
	return nil, remedied(statusError{answer.StatusCode, r.URL.Redacted(), printable(answer.Status), said})
}

// authenticate says how a command gives a password.
const authenticate = "--http.config.file=FILE takes one with basic_auth: {username: NAME, password_file: FILE}, or " +
	"authorization: {credentials_file: FILE} for a token"

// remedies are what to do about errors of HTTP and TLS, by a part of their text.
var remedies = [][2]string{
	{"server gave HTTP response to HTTPS client", "the server has no TLS: write http:// in --url"},
	{"Client sent an HTTP request to an HTTPS server", "the server has TLS: write https:// in --url"},
	{"certificate required", "the server wants a certificate: --http.config.file=FILE takes one with tls_config: " +
		"{cert_file: FILE, key_file: FILE}"},
}

// remedied adds what to do to an error of HTTP or TLS.
func remedied(err error) error {
	what := ""
	switch {
	case errors.As(err, new(x509.UnknownAuthorityError)):
		what = "--http.config.file=FILE takes one with tls_config: {ca_file: FILE}, the authority's certificate"
	case errors.As(err, new(x509.HostnameError)):
		what = "--http.config.file=FILE takes one with tls_config: {server_name: NAME}, a name of the certificate"
	default:
		for _, r := range remedies {
			if strings.Contains(err.Error(), r[0]) {
				what = r[1]
			}
		}
	}
	if what == "" {
		return err
	}
	return fmt.Errorf("%w; %s", err, what)
}
