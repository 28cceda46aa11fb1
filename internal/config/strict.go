package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"gpusteward/internal/input"
	"gpusteward/internal/quota"
)

var (
	atLine       = regexp.MustCompile(`(?s)^(?:yaml: )?line (\d+): (.*)`)
	unknownField = regexp.MustCompile(`^field (.+) not found in type (\S+)`)
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

// flags are keys that people look for in the file, and the flags of the agent that
// they mean.
var flags = map[string]string{
	"listen": listens, "listen_address": listens, "address": listens, "port": listens,
	"tls": "--web.config.file", "tls_config": "--web.config.file", "basic_auth": "--web.config.file",
	"log_level": "--log.level", "log_format": "--log.format", "state_dir": "--state.dir", "runtime_dir": "--runtime.dir",
	"role": "--role",
}

const listens = "--web.listen-address"

// remedies are what to do about errors of YAML itself, by a part of their text.
var remedies = [][2]string{
	{"cannot start any token", "indent with spaces, not with tabs, and quote a value that begins with % @ or `"},
	{"mapping values are not allowed", `indent the keys of a section alike, and quote a value that contains ": "`},
	{"did not find expected '-' indicator", "indent the keys of an entry alike, and begin each entry with a dash"},
	{"did not find expected key", "indent the keys of a section alike, and quote a value that begins with {"},
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
	all := empties(path, root)
	if err == nil || errors.Is(err, io.EOF) { // an empty file means defaults
		return all.Err()
	}
	if bad := bytes.IndexRune(text, utf8.RuneError); bad >= 0 && strings.Contains(err.Error(), "UTF-8") {
		return fmt.Errorf("%s:%d: this line is not UTF-8: save the file as UTF-8", path, 1+bytes.Count(text[:bad], []byte("\n")))
	}
	problems := []string{err.Error()}
	var typeError *yaml.TypeError
	if errors.As(err, &typeError) {
		problems = typeError.Errors
	}
	for _, p := range problems {
		all = append(all, explain(path, p, reflect.TypeOf(v), root))
	}
	return all
}

// empties returns an error for each element of a list that has no value. The
// decoder leaves it out.
func empties(path string, root *yaml.Node) (all input.Errors) {
	find(root, "", func(at string, key, value *yaml.Node) bool {
		all.If(key == nil && at != "" && value.ShortTag() == "!!null",
			"%s:%d: %s: the entry is empty: fill it, or remove its dash", path, value.Line, at)
		return false
	})
	return all
}

// explain converts an error of the decoder into the file, the line, the key and
// the expected value.
func explain(path, problem string, t reflect.Type, root *yaml.Node) error {
	line, what := 0, strings.TrimPrefix(problem, "yaml: ")
	match := func(path string, key, value *yaml.Node) bool { return false }
	if m := atLine.FindStringSubmatch(problem); m != nil {
		line, _ = strconv.Atoi(m[1])
		what = m[2]
	}
	wrong := wrongType.FindStringSubmatch(what)
	if m := unknownField.FindStringSubmatch(what); m != nil {
		at, _ := find(root, "", func(_ string, key, _ *yaml.Node) bool {
			return key != nil && key.Line == line && key.Value == m[1]
		})
		what = fmt.Sprintf("unknown key %q%s", m[1], instead(m[1], keys(typeAt(t, strings.TrimSuffix(at, m[1]))), t))
		if instead := retired[strings.TrimPrefix(m[2], "config.")+"."+m[1]]; instead != "" {
			what = fmt.Sprintf("the key %q no longer exists: %s", m[1], instead)
		}
	} else if m := twice.FindStringSubmatch(what); m != nil {
		match = func(_ string, key, _ *yaml.Node) bool { return key != nil && key.Line == line && key.Value == m[1] }
	} else if i := slices.IndexFunc(remedies, func(r [2]string) bool { return strings.Contains(what, r[0]) }); i >= 0 {
		what += ": " + remedies[i][1]
	} else if wrong != nil {
		tag, start := "!!"+wrong[1], strings.TrimSuffix(wrong[2], "...")
		match = func(path string, _, value *yaml.Node) bool {
			return value.Line == line && value.ShortTag() == tag && strings.HasPrefix(value.Value, start) &&
				is(typeAt(t, path), wrong[3])
		}
	} else if line == 0 { // from UnmarshalText, which does not know its line
		match = func(_ string, _, value *yaml.Node) bool {
			return value.Kind == yaml.ScalarNode && strings.HasPrefix(what, strconv.Quote(value.Value)+" ")
		}
	}
	key, at := find(root, "", match)
	if wrong != nil {
		what = mistaken(wrong, nodeOf(root, key), typeAt(t, key), strings.HasPrefix(value(t).PkgPath(), "github.com/"))
	}
	if at > 0 {
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

// instead says what to write instead of a key that is none of those known beside
// it in a t.
func instead(key string, known []string, t reflect.Type) string {
	if glued.MatchString(key) {
		return ": write a space after the colon"
	}
	if flag := flags[key]; flag != "" {
		return ": this is a flag of the agent, " + flag
	}
	said := input.Instead(key, known)
	if of := owners(t, "", key); len(of) > 0 && strings.HasPrefix(said, ";") {
		return ": it belongs to " + strings.Join(of, " or ")
	}
	return said
}

// glued is a key without the space that follows its colon.
var glued = regexp.MustCompile(`^\w+:\S`)

// owners returns the places in a t with that key, whose path is above.
func owners(t reflect.Type, above, key string) (all []string) {
	t = value(t)
	if t.Kind() == reflect.Slice {
		return owners(t.Elem(), above+"[]", key)
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	for name, field := range fields(t) {
		if name == key && above != "" {
			all = append(all, above)
		}
		if field != nil {
			all = append(all, owners(field, strings.TrimPrefix(above+"."+name, "."), key)...)
		}
	}
	return all
}

// mistaken says that the value of a node has the wrong form, and what to write
// where a t belongs. The decoder cuts a value short, and so it stays where it may
// be a secret: in files of others' formats, and in a URL.
func mistaken(wrong []string, n yaml.Node, t reflect.Type, foreign bool) string {
	value, form := wrong[2], wanted(wrong[3])
	if strings.HasSuffix(value, "...") && n.Kind == yaml.ScalarNode && !foreign && !strings.Contains(n.Value, "@") {
		value = n.Value
	}
	what := fmt.Sprintf("%q is not %s", value, form)
	if value == "" {
		what = fmt.Sprintf("want %s, not a %s", form, map[string]string{"seq": "list", "map": "mapping"}[wrong[1]])
	}
	switch all := keys(t); {
	case strings.HasPrefix(wrong[3], "[]") && value == "":
		what += ": write it in brackets, [{...}]"
	case strings.HasPrefix(wrong[3], "[]"):
		what += ": write [" + strings.Join(strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' }), ", ") + "]"
	case form == ofKeys && glued.MatchString(value):
		what += ": write a space after the colon"
	case form == "text" && wrong[1] == "map":
		what += ": quote a value that begins with {"
	case form == ofKeys && len(all) > 0:
		what += ": its keys are " + strings.Join(all, ", ")
	case form == ofKeys:
		what += ": write {KEY: VALUE}"
	}
	return what
}

// wanted describes a Go type to an author of YAML.
func wanted(t string) string {
	switch {
	case strings.HasSuffix(t, "Duration"):
		return quota.Wait(0).Form()
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
	return ofKeys
}

const ofKeys = "a mapping of keys to values"

// is reports whether t, if it is known, may be what the decoder calls name: a
// type that decodes itself does so under another one.
func is(t reflect.Type, name string) bool {
	if t == nil {
		return true
	}
	_, itself := reflect.PointerTo(t).MethodByName("UnmarshalYAML")
	return itself || t.String() == name || t.Kind().String() == name
}

// typeAt returns the type of the value at a dotted key path in a t; nil if it is
// unknown.
func typeAt(t reflect.Type, path string) reflect.Type {
	for part := range strings.FieldsFuncSeq(path, func(r rune) bool { return strings.ContainsRune(".[]", r) }) {
		switch t = value(t); {
		case t.Kind() == reflect.Slice || t.Kind() == reflect.Map:
			t = t.Elem()
		case t.Kind() == reflect.Struct:
			var below reflect.Type
			for name, field := range fields(t) {
				if name == part || name == anyKey {
					below = field
				}
			}
			if t = below; t == nil {
				return nil
			}
		default:
			return nil
		}
	}
	return value(t)
}

// value returns what a pointer to t points to, or t.
func value(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

// keys lists the YAML keys of a t in their order; none for a nil t, or one that
// has no keys of its own.
func keys(t reflect.Type) (all []string) {
	if t != nil && t.Kind() == reflect.Struct {
		for key := range fields(t) {
			if key != anyKey {
				all = append(all, key)
			}
		}
	}
	return all
}

// anyKey stands for the keys of an inline map that is not the terms of a quota.
const anyKey = "*"

// fields yields the YAML keys of a struct and the type of each: nil for the terms
// of a quota, which are an inline map.
func fields(t reflect.Type) iter.Seq2[string, reflect.Type] {
	return func(yield func(string, reflect.Type) bool) {
		for i := range t.NumField() {
			f := t.Field(i)
			key, option, _ := strings.Cut(f.Tag.Get("yaml"), ",")
			below := map[string]reflect.Type{}
			names := []string{key}
			switch {
			case !f.IsExported() || key == "" && option != "inline":
				continue
			case option == olderName && strings.HasPrefix(t.PkgPath(), "gpusteward/"): // elsewhere it marks optional keys
				continue
			case option == "inline" && f.Type.Kind() == reflect.Map && !strings.HasPrefix(t.PkgPath(), "gpusteward/"):
				names, below[anyKey] = []string{anyKey}, f.Type.Elem()
			case option == "inline" && f.Type.Kind() == reflect.Map:
				names = quota.Keys()
			case option == "inline":
				names = nil
				for name, field := range fields(f.Type) {
					names, below[name] = append(names, name), field
				}
			default:
				below[key] = f.Type
			}
			for _, name := range names {
				if !yield(name, below[name]) {
					return
				}
			}
		}
	}
}

// find returns the dotted key and the line of the first match, which is a key
// and its value or an element of a list (with a nil key); 0 if there is none.
func find(n *yaml.Node, path string, match func(path string, key, value *yaml.Node) bool) (string, int) {
	below := func(path string, key, value *yaml.Node) (string, int) {
		if match(path, key, value) {
			if key != nil {
				return path, key.Line
			}
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
