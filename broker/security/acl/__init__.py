"""Access control: the permissions of users, by the rules of an ACL file, and their quotas."""
