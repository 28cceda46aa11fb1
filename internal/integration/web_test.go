package integration

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

func TestSystemdsSocketIsServed(t *testing.T) {
	t.Parallel()
	l := onLoopback(t)
	// The same with the enforcer: the sockets are then for HTTP, and the broker creates its own.
	cmd := activated([]*os.File{socketOf(t, l)}, "--demo=h100", "--web.systemd-socket",
		"--config.file="+fixture.Config(t, "enforcer: {enabled: true}\n"))
	a := launch(t, cmd)
	a.url = "http://" + l.Addr().String()
	eventually(t, "the socket is served", func() bool {
		status, _, err := a.fetch("/-/ready")
		return err == nil && status == http.StatusOK
	})
	eventually(t, "the log says so", func() bool { return a.log.find("Listening on")["address"] == l.Addr().String() })
	a.endsWell()
}

// tlsFiles writes a self-signed certificate for 127.0.0.1 and its key, and returns a pool with the certificate.
func tlsFiles(t *testing.T, dir string) *x509.CertPool {
	t.Helper()
	key := fixture.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	certificate := fixture.Value(x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key))(t)
	secret := fixture.Value(x509.MarshalPKCS8PrivateKey(key))(t)
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
	fixture.Rewrite(t, filepath.Join(dir, "cert.pem"), string(text))
	fixture.Rewrite(t, filepath.Join(dir, "key.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY",
		Bytes: secret})))
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return pool
}

// sesame is bcrypt's hash of "open sesame".
const sesame = "$2a$04$UNbxwQ.Sg580WK5XPtFco.RQXXs2H8qLuE7c2t1UNEC2PLBCLbFp."

func TestWebConfigGivesTLSAndPasswords(t *testing.T) {
	t.Parallel()
	path := fixture.Config(t,
		"tls_server_config: {cert_file: cert.pem, key_file: key.pem}\nbasic_auth_users: {prometheus: "+sesame+"}\n")
	pool := tlsFiles(t, filepath.Dir(path))
	a := start(t, "--demo=h100", "--web.config.file="+path).listening()
	address := strings.TrimPrefix(a.url, "http://")
	eventually(t, "the log has the page's URL", func() bool {
		return a.log.find("the live page is served")["url"] == "https://"+address
	})
	a.client.Transport = &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool}}
	for login, want := range map[string]int{
		"": http.StatusUnauthorized, "prometheus:guess@": http.StatusUnauthorized,
		"prometheus:open%20sesame@": http.StatusOK,
	} {
		for _, page := range []string{"/metrics", "/", "/-/healthy"} {
			a.url = "https://" + login + address
			if status, _ := a.get(page); status != want {
				t.Errorf("https://%s...%s: status %d, want %d", login, page, status, want)
			}
		}
	}
	a.url = "http://prometheus:open%20sesame@" + address
	if status, body := a.get("/metrics"); status == http.StatusOK {
		t.Errorf("served without TLS: %s", body)
	}
	a.endsWell()
}

func TestBadWebConfigIsRefusedAtStart(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"tls_server_confg: {}\n": "tls_server_confg",
		"tls_server_config: {cert_file: none.pem, key_file: none.pem}\n":      "none.pem",
		"tls_server_config: {cert_file: cert.pem}\n":                          "key",
		"basic_auth_users: {prometheus: in the clear}\n":                      "bcrypt",
		"tls_server_config: {min_version: TLS9, cert_file: a, key_file: b}\n": "TLS9",
	} {
		path := fixture.Config(t, text)
		tlsFiles(t, filepath.Dir(path))
		ctx, cancel := context.WithTimeout(t.Context(), ending)
		log := new(transcript)
		status := run(ctx, []string{"--demo=h100", loopback, "--web.config.file=" + path}, io.Discard, log)
		cancel()
		fixture.If(t, status != exitConfig || !strings.Contains(log.String(), "--web.config.file="+path) ||
			!strings.Contains(log.String(), want) || log.find("Listening on") != nil,
			"with\n%sstatus %d, want 78 and a message with the flag, the file and %q; log:\n%s", text, status, want, log)
	}
}
