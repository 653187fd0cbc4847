"""What people read: tables, pictures, descriptions of folders. No torch here."""
