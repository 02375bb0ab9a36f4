// Package enginev1 is generated from engine.proto, which documents every call and message.
package enginev1
