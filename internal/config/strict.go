package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"gpusteward/internal/input"
	"gpusteward/internal/quota"
)

var (
	atLine       = regexp.MustCompile(`(?s)^(?:yaml: )?line (\d+): (.*)`)
	unknownField = regexp.MustCompile(`^field (\S+) not found in type (\S+)`)
	wrongType    = regexp.MustCompile("(?s)^cannot unmarshal !!(\\w+)(?: `(.*)`)? into (.+)$")
	twice        = regexp.MustCompile(`^mapping key "(.*)" already defined`)
)

// olderName marks the field of a key under its older name. It is still read,
// but neither explained nor offered.
const olderName = "omitempty"

// retired are keys of older files, by type, with their replacement.
var retired = map[string]string{
	"Tenant.weight": weightless,
	"Default.weight": "processes without a tenant get what the guarantees leave, by priority (idle, low, " +
		"normal, high)",
	"Tenant.users":       underSelect,
	"Tenant.groups":      underSelect,
	"Tenant.workloads":   underSelect,
	"Tenant.executables": underSelect,
}

// remedies are what to do about errors of YAML itself, by a part of their text.
var remedies = [][2]string{
	{"cannot start any token", "indent with spaces, not with tabs, and quote a value that begins with % @ or `"},
	{"mapping values are not allowed", `indent the keys of a section alike, and quote a value that contains ": "`},
	{"did not find expected key", "indent the keys of a section alike"},
	{"unexpected end of stream", "a quote is not closed"},
	{"expected ',' or ']'", "a bracket is not closed, or a comma is missing"},
	{"expected ',' or '}'", "a brace is not closed, or a comma is missing"},
	{"expected alphabetic or numeric character", "quote a value that begins with * or &"},
	{"unknown anchor", "quote a value that begins with *"},
}

const (
	weightless = "write guarantee, the part of the GPU's time that it gets whenever it wants it (30 %), " +
		"or priority, for more or less of what is left (idle, low, normal, high, realtime)"
	underSelect = "write it into an entry of select, as in select: [{users: [alice]}]"
)

// Decode decodes the one document of text into v. A key that v lacks is an
// error, which names the file, the line and the key.
func Decode(path string, text []byte, v any) error {
	return decodeStrict(path, text, v, new(yaml.Node))
}

// decodeStrict decodes the one document of text into v, and as a tree into
// root. A key that v lacks is an error.
func decodeStrict(path string, text []byte, v any, root *yaml.Node) error {
	err := yaml.Unmarshal(text, root)
	if err == nil {
		decoder := yaml.NewDecoder(bytes.NewReader(text))
		decoder.KnownFields(true)
		if err = decoder.Decode(v); err == nil {
			var second yaml.Node
			if err = decoder.Decode(&second); err == nil {
				return fmt.Errorf("%s:%d: a second document begins here, but only one is allowed", path, second.Line)
			}
		}
	}
	if err == nil || errors.Is(err, io.EOF) { // an empty file means defaults
		return nil
	}
	problems := []string{err.Error()}
	var typeError *yaml.TypeError
	if errors.As(err, &typeError) {
		problems = typeError.Errors
	}
	var all input.Errors
	for _, p := range problems {
		all = append(all, explain(path, p, reflect.TypeOf(v), root))
	}
	return all
}

// explain converts an error of the decoder into the file, the line, the key and
// the expected value.
func explain(path, problem string, t reflect.Type, root *yaml.Node) error {
	line, what, match := 0, strings.TrimPrefix(problem, "yaml: "), func(key, value *yaml.Node) bool { return false }
	if m := atLine.FindStringSubmatch(problem); m != nil {
		line, _ = strconv.Atoi(m[1])
		what = m[2]
	}
	if m := unknownField.FindStringSubmatch(what); m != nil {
		known := knownKeys(t, m[2])
		if known == nil { // of a type that decodes itself under another name
			path, _ := find(root, "", func(key, _ *yaml.Node) bool {
				return key != nil && key.Line == line && key.Value == m[1]
			})
			known = keysAt(t, path)
		}
		what = fmt.Sprintf("unknown key %q%s", m[1], input.Instead(m[1], known))
		if instead := retired[strings.TrimPrefix(m[2], "config.")+"."+m[1]]; instead != "" {
			what = fmt.Sprintf("the key %q no longer exists: %s", m[1], instead)
		}
	} else if m := twice.FindStringSubmatch(what); m != nil {
		match = func(key, _ *yaml.Node) bool { return key != nil && key.Line == line && key.Value == m[1] }
	} else if i := slices.IndexFunc(remedies, func(r [2]string) bool { return strings.Contains(what, r[0]) }); i >= 0 {
		what += ": " + remedies[i][1]
	} else if m := wrongType.FindStringSubmatch(what); m != nil {
		tag, start := "!!"+m[1], strings.TrimSuffix(m[2], "...")
		list := strings.HasPrefix(m[3], "[]")
		what = fmt.Sprintf("%q is not %s", m[2], wanted(m[3]))
		if list {
			what += ": write [" + m[2] + "]"
		}
		if m[2] == "" {
			what = fmt.Sprintf("want %s, not a %s", wanted(m[3]),
				map[string]string{"seq": "list", "map": "mapping"}[m[1]])
			if list {
				what += ": write it in brackets, [{...}]"
			}
		}
		match = func(_, value *yaml.Node) bool {
			return value.Line == line && value.ShortTag() == tag && strings.HasPrefix(value.Value, start)
		}
	} else if line == 0 { // from UnmarshalText, which does not know its line
		match = func(_, value *yaml.Node) bool {
			return value.Kind == yaml.ScalarNode && strings.HasPrefix(what, strconv.Quote(value.Value)+" ")
		}
	}
	if key, at := find(root, "", match); at > 0 {
		line = at
		if key != "" {
			what = key + ": " + what
		}
	}
	if line == 0 {
		return fmt.Errorf("%s: %s", path, what)
	}
	return fmt.Errorf("%s:%d: %s", path, line, what)
}

// wanted describes a Go type to an author of YAML.
func wanted(t string) string {
	switch {
	case strings.HasSuffix(t, "Duration"):
		return "a duration such as 10s or 1m"
	case strings.HasPrefix(t, "[]"):
		return "a list"
	case strings.Contains(t, "int"):
		return "a whole number that fits"
	case strings.HasPrefix(t, "float"):
		return "a number"
	case t == "bool":
		return "true or false"
	case strings.HasPrefix(t, "a "): // a term's
		return t
	case t == "string":
		return "text"
	}
	return "a mapping of keys to values"
}

// knownKeys lists the YAML keys of the type called name within t.
func knownKeys(t reflect.Type, name string) (keys []string) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice:
		return knownKeys(t.Elem(), name)
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			switch key, option, _ := strings.Cut(f.Tag.Get("yaml"), ","); {
			case !f.IsExported() || option == olderName:
			case t.String() != name:
				if found := knownKeys(f.Type, name); found != nil {
					return found
				}
			case f.Type == reflect.TypeFor[terms]():
				keys = append(keys, quota.Keys()...)
			default:
				keys = append(keys, key)
			}
		}
	}
	return keys
}

// keysAt lists the YAML keys beside the dotted key path.
func keysAt(t reflect.Type, path string) (keys []string) {
	if t.Kind() == reflect.Pointer {
		return keysAt(t.Elem(), path)
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	first, rest, deeper := strings.Cut(path, ".")
	for i := range t.NumField() {
		f := t.Field(i)
		switch key, option, _ := strings.Cut(f.Tag.Get("yaml"), ","); {
		case option == "inline":
			keys = append(keys, keysAt(f.Type, path)...)
		case deeper && key == first:
			return keysAt(f.Type, rest)
		case !deeper && key != "":
			keys = append(keys, key)
		}
	}
	return keys
}

// find returns the dotted key and the line of the first match, which is a key
// and its value or an element of a list (with a nil key); 0 if there is none.
func find(n *yaml.Node, path string, match func(key, value *yaml.Node) bool) (string, int) {
	below := func(path string, key, value *yaml.Node) (string, int) {
		if key != nil && match(key, value) {
			return path, key.Line
		}
		if key == nil && match(nil, value) {
			return path, value.Line
		}
		return find(value, path, match)
	}
	switch n.Kind {
	case yaml.DocumentNode:
		return below("", nil, n.Content[0])
	case yaml.SequenceNode:
		for i, value := range n.Content {
			if key, line := below(fmt.Sprintf("%s[%d]", path, i), nil, value); line > 0 {
				return key, line
			}
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if key, line := below(strings.TrimPrefix(path+"."+n.Content[i].Value, "."), n.Content[i],
				n.Content[i+1]); line > 0 {
				return key, line
			}
		}
	}
	return "", 0
}

// lineOf returns the line of a key, such as a.list[3].b, or of the longest part
// of it that exists.
func lineOf(root *yaml.Node, key string) int { return max(nodeOf(root, key).Line, 1) }

// nodeOf returns the value of a key, on the line of the key, or that of the
// longest part of it that exists.
func nodeOf(root *yaml.Node, key string) yaml.Node {
	return nodeBelow(root, strings.NewReplacer("[", ".", "]", "").Replace(key))
}

// nodeBelow is nodeOf for a dotted key, such as a.list.3.b.
func nodeBelow(n *yaml.Node, key string) yaml.Node {
	if n.Kind == yaml.DocumentNode && len(n.Content) > 0 {
		return nodeBelow(n.Content[0], key)
	}
	first, rest, _ := strings.Cut(key, ".")
	if i, err := strconv.Atoi(first); err == nil && n.Kind == yaml.SequenceNode && i < len(n.Content) {
		return nodeBelow(n.Content[i], rest)
	}
	if n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == first {
				if rest != "" {
					return nodeBelow(n.Content[i+1], rest)
				}
				value := *n.Content[i+1]
				value.Line = n.Content[i].Line
				return value
			}
		}
	}
	return *n
}
