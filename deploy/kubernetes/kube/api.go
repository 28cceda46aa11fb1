package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"k8s.io/client-go/rest"
)

const mostObjects = 32 << 20 // bytes of an answer of the API server

// An api is the API server, as a client with the pod's token sees it.
type api struct {
	client *http.Client
	base   string
}

// cluster returns the API server of the pod's cluster. The client reads the token again before it
// expires.
func cluster() (*api, error) {
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, err
	}
	config.Timeout = patience
	client, err := rest.HTTPClientFor(config)
	return &api{client, config.Host}, err
}

// A refusal is an answer of the API server other than success.
type refusal struct {
	Code    int    `json:"code"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	call    string
}

func (r *refusal) Error() string { return fmt.Sprintf("%s: %d %s", r.call, r.Code, r.Message) }

// call sends in, if it is not nil, and reads the answer into out, if that is not nil.
func (a *api) call(ctx context.Context, method, path, contentType string, in, out any) error {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(a.base, "/")+path, body)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "application/json")
	if in != nil {
		request.Header.Set("Content-Type", contentType)
	}
	answer, err := a.client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(answer.Body, mostObjects))
	if err != nil {
		return err
	}
	if answer.StatusCode/100 != 2 {
		r := &refusal{Message: http.StatusText(answer.StatusCode), call: method + " " + path}
		_ = json.Unmarshal(text, r) // a proxy may answer in its own way
		r.Code = answer.StatusCode
		return r
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(text, out)
}

func (a *api) get(ctx context.Context, path string, query url.Values, out any) error {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return a.call(ctx, http.MethodGet, path, "", nil, out)
}
