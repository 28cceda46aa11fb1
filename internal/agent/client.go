package agent

import (
	"fmt"
	"net/http"

	"github.com/alecthomas/kingpin/v2"

	"gpusteward/internal/config"
)

// A clientFile is the path of a file that describes an HTTP client; empty: none.
type clientFile string

// flag adds the flag for the file to a command.
func (f *clientFile) flag(c *kingpin.CmdClause) {
	c.Flag("http.config.file", "File with a password, a token or certificates for --url, in the format of "+
		"Prometheus's http_config: basic_auth, authorization, tls_config and others.").
		PlaceHolder("FILE").StringVar((*string)(f))
}

// client returns the client; nil if there is no file.
func (f clientFile) client() (*http.Client, error) {
	if f == "" {
		return nil, nil
	}
	c, err := config.HTTPClient(string(f))
	if err != nil {
		return nil, fmt.Errorf("--http.config.file: %w", err)
	}
	return c, nil
}
