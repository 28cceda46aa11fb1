package config

import (
	"encoding"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"gpusteward/enforcer/policy"
	"gpusteward/internal/quota"
)

// terms are the keys of a mapping that have no field in its type: those of
// quota.Terms.
type terms map[string]yaml.Node

// UnmarshalYAML reads a tenant with the terms of its quota.
func (t *Tenant) UnmarshalYAML(decode func(any) error) (err error) {
	type plain Tenant
	err = decode((*plain)(t))
	t.written, err = t.Terms.written(*t, err)
	return err
}

// UnmarshalYAML reads an entry for some GPUs with its terms.
func (g *GPU) UnmarshalYAML(decode func(any) error) (err error) {
	type plain GPU
	err = decode((*plain)(g))
	g.written, err = g.Terms.written(*g, err)
	return err
}

// Values that are written as text. The decoder gives up at an error of
// UnmarshalText, and goes on after one of these.
type (
	priority policy.Priority
	level    policy.Level
	part     quota.Part
	size     quota.Size
)

func (p *priority) UnmarshalYAML(n *yaml.Node) error { return take(n, (*policy.Priority)(p)) }
func (l *level) UnmarshalYAML(n *yaml.Node) error    { return take(n, (*policy.Level)(l)) }
func (p *part) UnmarshalYAML(n *yaml.Node) error     { return take(n, (*quota.Part)(p)) }
func (s *size) UnmarshalYAML(n *yaml.Node) error     { return take(n, (*quota.Size)(s)) }

// take reads the text of n. The error has the form of the YAML decoder's errors.
func take(n *yaml.Node, value encoding.TextUnmarshaler) error {
	wrong := ""
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.ScalarNode {
		form := "string"
		if v, ok := value.(quota.Value); ok {
			form = v.Form()
		}
		wrong = fmt.Sprintf("line %d: cannot unmarshal %s into %s", n.Line, n.ShortTag(), form)
	} else {
		err := value.UnmarshalText([]byte(n.Value))
		if v, ok := value.(quota.Value); ok && err == nil {
			err = forgotten(v, n.Value)
		}
		if err == nil {
			return nil
		}
		wrong = err.Error()
	}
	return &yaml.TypeError{Errors: []string{wrong}}
}

// forgotten returns an error if value is a size without its unit.
func forgotten(value quota.Value, text string) error {
	if !strings.HasPrefix(value.Form(), "a size") {
		return nil
	}
	return quota.UnitForgotten(text)
}

// written returns the terms of owner. The error has the form of the YAML
// decoder's errors, and includes err, the decoder's errors about owner.
func (t terms) written(owner any, err error) (w quota.Written, _ error) {
	wrong := new(yaml.TypeError)
	if err != nil && !errors.As(err, &wrong) {
		return w, err
	}
	for _, key := range slices.Sorted(maps.Keys(t)) {
		n := t[key]
		if n.Kind == yaml.AliasNode {
			n = *n.Alias
		}
		term, tag := quota.Find(key), n.ShortTag()
		if term == nil {
			wrong.Errors = append(wrong.Errors, fmt.Sprintf("line %d: field %s not found in type %T", n.Line,
				key, owner))
		} else if n.Kind != yaml.ScalarNode {
			wrong.Errors = append(wrong.Errors, fmt.Sprintf("line %d: cannot unmarshal %s into %s", n.Line,
				tag, term.Form()))
		} else if tag == "!!null" {
			continue
		} else if err := forgotten(term.At(new(quota.Quota)), n.Value); err != nil {
			wrong.Errors = append(wrong.Errors, err.Error())
		} else if err := w.Set(key, n.Value); err != nil {
			wrong.Errors = append(wrong.Errors, err.Error())
		}
	}
	if len(wrong.Errors) == 0 {
		return w, nil
	}
	return w, wrong
}
